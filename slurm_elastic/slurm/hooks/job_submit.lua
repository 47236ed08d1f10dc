-- Made by `slurm-elastic conf install`, because this site had no job_submit.lua of its own.
-- A site that has one keeps it and calls slurm_elastic_submit there (docs/submission.md).

local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or ""
local loaded, why = pcall(dofile, here .. "slurm_elastic.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
  if loaded then
    return slurm_elastic_submit(job_desc, part_list, submit_uid)
  end
  slurm.log_error("%s", "slurm-elastic: jobs are left as they come: " .. tostring(why))
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
