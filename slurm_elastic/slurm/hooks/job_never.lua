-- What a job reads that can never start. A part of slurm_elastic.lua. Nothing is said unless it is
-- proven: a user cancels a job that is told so.

-- A plain list of features. `|`, brackets and counts may be met by nodes that we do not see through.
local function is_plain(features)
  return string.match(features or "", "^[%w_.&-]*$") ~= nil
end

local function count_text(asked, most)
  return "it asks for " .. whole(asked) .. (asked == 1 and " node" or " nodes") .. ", and at most "
    .. whole(most) .. " such nodes can run"
end

-- A limit of the partition that the job breaks, and the QOS that may lift it (PartitionTimeLimit,
-- PartitionMaxNodes); nil where it breaks none.
local function over_limit(part, need, job)
  local qos = not blank(job.qos) and job.qos or not blank(job.default_qos) and job.default_qos or nil
  local time, most_time = need.time_min or need.time, minutes(part.max_time) or math.huge
  local most_nodes, most_memory = number(part.max_nodes, NO_VAL) or math.huge, limit(part.max_mem_per_node)
  if time and time > most_time then
    return "it asks for a time of " .. time_text(time) .. ", and MaxTime is " .. time_text(most_time), qos
  elseif (need.nodes or 1) > most_nodes then
    return "it asks for " .. whole(need.nodes) .. " nodes, and MaxNodes is " .. whole(most_nodes), qos
  elseif not qos and (need.mem_node or 0) > most_memory then
    return "it asks for " .. whole(need.mem_node) .. " MB of memory on a node, and MaxMemPerNode is "
      .. whole(most_memory)
  end
  return nil
end

-- Why the site's own partition never starts the job, as far as Slurm tells the filter.
local function never_at_site(part, need, job)
  local nodes, cpus = totals(part)
  local asked = need.nodes or 1
  if nodes and asked > nodes then
    return count_text(asked, nodes)
  elseif cpus and need.cpus > cpus then
    return "it asks for " .. whole(need.cpus) .. " CPUs, and all its nodes together have "
      .. whole(cpus)
  end
  return over_limit(part, need, job)
end

-- Whether Slurm may find room where `fitting` finds none: it gives a job more CPUs that asks for more
-- memory a CPU than MaxMemPerCPU, puts several tasks on a CPU with --overcommit, and may take fewer
-- GPUs of each node than there are if the job counts CPUs or memory by them.
local function bends(part, need)
  local per_cpu = need.mem_cpu or 0
  local counts_by_gres = next(need.gres_cpus) ~= nil or next(need.gres_mem) ~= nil
  return (counts_by_gres and next(need.job_gres) ~= nil) or per_cpu > limit(part.max_mem_per_cpu) or (whole_nodes(need, part) and per_cpu > 0)
    or (need.tasks or 1) > need.cpus
end

-- The pools with all their nodes. Fewer may be up together at the moment, but operators can raise each
-- of these limits at any time (`slurm-elastic limit`), so no "never" may follow from them.
local function without_limits(found)
  local all = {}
  for i, one in ipairs(found) do
    local pool = setmetatable({ count = one.pool.nodes }, { __index = one.pool })
    all[i] = { pool = pool, cpus = one.cpus, tasks = one.tasks }
  end
  return all
end

-- Why none of our partition's nodes ever starts the job.
local function never_in_cloud(data, part, need, job)
  local found = without_limits(fitting(data.pools, need, part))
  if enough(found, need, math.huge) then
    return over_limit(part, need, job)
  elseif bends(part, need) then
    return nil
  end
  if #found == 0 then
    return "it has no node with all that the job asks for"
  end
  local count, asked = 0, need.nodes or 1
  for _, one in ipairs(found) do
    count = count + one.pool.count
  end
  if count < asked then
    return count_text(asked, count)
  end
  return "it asks for more than all its nodes have"
end

-- Why the partition never starts the job, and the QOS that may change that; nil where it may.
local function never_here(name, part_list, need, job)
  local part = part_list[name]
  for _, data in ipairs(SITE.partitions or {}) do
    if part and data.name == name then
      return never_in_cloud(data, part, need, job)
    end
  end
  if part then
    return never_at_site(part, need, job)
  end
  return nil
end

-- What the clouds lack that are open to jobs of the site's partition `site_name`: with less of it they would
-- run the job.
local function cloud_texts(part_list, need, job, site_name)
  local text = ""
  for _, data in ipairs(SITE.partitions or {}) do
    local why, qos = never_here(data.name, part_list, need, job)
    if why and not qos and is_open_to(data, job, site_name, part_list) then
      text = text .. "; in " .. data.name .. ": " .. why
    end
  end
  return text
end

-- The sentence about a job that no partition of its list can ever start; nil where one may.
local function never(job, part_list)
  local need, list, first, lifting = needs(job), job.partition, nil, nil
  local site_name = first_of(job, part_list)
  if blank(list) then
    list = site_name
  end
  if blank(list) or not blank(job.clusters) or not need or not is_plain(need.features) then
    return nil
  end
  for name in items(list) do
    local why, qos = never_here(name, part_list, need, job)
    if not why then
      return nil
    end
    first, lifting = first or why, lifting or qos
  end
  local text = first .. (site_name and cloud_texts(part_list, need, job, site_name) or "")
  if lifting then
    return "this job starts in partition " .. list .. " only if QOS " .. lifting .. " lifts a limit: " .. text
  end
  return "this job can never start in partition " .. list .. ": " .. text
end
