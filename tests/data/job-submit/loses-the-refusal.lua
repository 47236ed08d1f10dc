pcall(dofile, "/etc/slurm/slurm_elastic.lua")
function slurm_job_submit(job_desc, part_list, submit_uid)
  if slurm_elastic_submit then slurm_elastic_submit(job_desc, part_list, submit_uid) end
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
