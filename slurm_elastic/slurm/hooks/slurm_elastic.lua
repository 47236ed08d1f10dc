-- Made by `slurm-elastic conf install`: changes are lost at the next install.
--
-- slurm_elastic_wrap(slurm_job_submit), for the end of a site's job_submit.lua: the site's function,
-- then slurm_elastic_submit(job_desc, part_list, submit_uid), for job_submit/lua: a job that names no
-- partition, node, exclusion or reservation gets the list "<site's default>,<ours that hold it>".
-- A job that names one partition of allow.partitions gets the same list with that partition first.
-- Slurm tries the partitions of a job in this order (equal PriorityTier), so the site's own nodes
-- are used first. A batch job that is to be checkpointed gets its script put behind a launcher. A job
-- that must not be requeued excludes the nodes of spot pools. All other jobs pass as they came, and so does every job after an error in here. Two kinds are refused,
-- with a sentence: those with a comment about how they are saved that cannot be followed (ckpt=krui),
-- and those with somebody else's account in a public cloud. Runs on Lua 5.1 (Debian's Slurm 22.05)
-- to 5.4.
--
-- When in doubt a partition is NOT listed: with EnforcePartLimits=ALL one listed partition that
-- cannot hold a job makes Slurm refuse it, though it would run elsewhere.

-- Generated: our partitions, best rank first; memory in MiB.
local SITE = {}

-- "Not set" and "unlimited" of slurm.h, by the width of the field.
local NO_VAL16, NO_VAL, INFINITE = 65534, 4294967294, 4294967295
local NO_VAL64 = 2 ^ 64 - 4096
local UP, SUBMIT_ONLY = 3, 1 -- part_record_t.state_up: PARTITION_SUBMIT 1, PARTITION_SCHED 2

local function blank(text)
  return text == nil or text == ""
end

-- The number, or nil where Slurm means "not set" (or, but for times, "unlimited").
local function number(value, unset)
  return type(value) == "number" and value < unset and value or nil
end

-- A time limit in minutes; math.huge is unlimited.
local function minutes(value)
  return value == INFINITE and math.huge or number(value, NO_VAL)
end

local function items(text)
  return string.gmatch(text or "", "[^,]+")
end

local function in_list(text, wanted)
  return string.find("," .. string.lower(text) .. ",", "," .. string.lower(wanted) .. ",", 1, true)
    ~= nil
end

-- The site's default partition, by name and record.
local function default_of(part_list)
  for name, part in pairs(part_list) do
    if part.flag_default == 1 then
      return name, part
    end
  end
  return nil
end

-- Whether allow.partitions of the cloud lists the site's partition. Its word "default" means the site's
-- default partition. No partition has this name: PartitionName=DEFAULT sets defaults (slurm.conf(5)).
local function allows(data, name, part_list)
  local allowed = data.allowed_partitions or {}
  return allowed[name] == true or (allowed["default"] == true and name == default_of(part_list))
end

-- The partition of the site whose nodes the job uses first, by name and record: the default one of a
-- job that names none, or the one that the job names, if some cloud allows it. nil for all other jobs.
-- Slurm compares names of partitions with their case.
local function first_of(job, part_list)
  if blank(job.partition) then
    return default_of(part_list)
  end
  for _, data in ipairs(SITE.partitions or {}) do
    if allows(data, job.partition, part_list) and part_list[job.partition] then
      return job.partition, part_list[job.partition]
    end
  end
  return nil
end

-- Whether jobs of the site's partition `first` may use the cloud. A cloud without allow.partitions is for
-- jobs that name no partition.
local function is_open_to(data, job, first, part_list)
  if data.allowed_partitions then
    return allows(data, first, part_list)
  end
  return blank(job.partition)
end

-- A count as people write it: Lua 5.3 and later would add ".0" to Slurm's numbers.
local function whole(count)
  return string.format("%.0f", count)
end

-- "gres:gpu:a100:2,gres/shard=4" -> { ["gpu:a100"] = 2, shard = 4 }; nil where not understood.
-- "none" (sbatch --gres=none) asks for nothing.
local function gres_counts(text)
  local counts = {}
  for item in items(text) do
    local name = string.gsub(string.gsub(item, "^gres[:/]", ""), "=", ":")
    -- A type may begin with a digit (gpu:3g.20gb:2). Only a last part of digits is a count.
    local head, tail, unit = string.match(name, "^(.+):(%d+)([kKmMgGtTpP]?)$")
    if head then
      name = head
    end
    if not string.match(name, "^[%w_.-]+$") and not string.match(name, "^[%w_.-]+:[%w_.-]+$") then
      return nil
    end
    if string.lower(name) ~= "none" then
      local power = unit and unit ~= "" and string.find("kmgtp", string.lower(unit), 1, true) or 0
      counts[name] = (counts[name] or 0) + tonumber(tail or "1") * 1024 ^ power
    end
  end
  return counts
end

-- How many of a gres there are: "gpu" counts every type, "gpu:a100" that type only.
local function gres_of(counts, name)
  local found = 0
  for key, count in pairs(counts) do
    if key == name or string.sub(key, 1, #name + 1) == name .. ":" then
      found = found + count
    end
  end
  return found
end

-- Whether the user chose where to run, or asked for something that no list may change.
local CHOSEN = { "req_nodes", "exc_nodes", "reservation", "clusters" }

local function any_text(job, fields)
  for _, field in ipairs(fields) do
    if not blank(job[field]) then
      return true
    end
  end
  return false
end

local function chosen(job)
  -- The parts of a heterogeneous job must not end up in clouds far from each other; a job that
  -- wants its nodes at once is not served by machines that have yet to boot.
  return any_text(job, CHOSEN)
    or number(job.het_job_offset, NO_VAL) ~= nil
    or job.cron_job == true
    or (number(job.immediate, NO_VAL16) or 0) ~= 0
end

-- Requests that we do not judge: who makes one stays with the site's default.
local STRANGE_TEXT = {
  "batch_features", "burst_buffer", "container", "network", "prefer", "tres_per_socket",
}
local STRANGE_16 = {
  "boards_per_node", "contiguous", "core_spec", "cores_per_socket", "ntasks_per_board",
  "ntasks_per_gpu", "ntasks_per_socket", "ntasks_per_tres", "reboot", "sockets_per_board",
  "sockets_per_node", "thread_spec",
}
local STRANGE_32 = { "pn_min_tmp_disk", "req_switch", "segment_size" }
local ONE_AT_MOST = { "ntasks_per_core", "threads_per_core" } -- our nodes have no hyperthreads

local function any_above(job, fields, unset, limit)
  for _, field in ipairs(fields) do
    if (number(job[field], unset) or 0) > limit then
      return true
    end
  end
  return false
end

local function strange(job)
  return any_text(job, STRANGE_TEXT)
    or any_above(job, STRANGE_16, NO_VAL16, 0)
    or any_above(job, STRANGE_32, NO_VAL, 0)
    or any_above(job, ONE_AT_MOST, NO_VAL16, 1)
end

-- How many of a kind of gres the job may take of one node of the pool: those that it asks for on each
-- node or for each task, or its share of those for the whole job (Slurm chooses the nodes).
local function of_node(need, pool, kind)
  local of_tasks = gres_of(need.task_gres, kind) * math.max(need.node_tasks, 1)
  local of_job = math.min(gres_of(need.job_gres, kind), gres_of(pool.gres, kind))
  return math.max(gres_of(need.node_gres, kind), of_tasks, of_job)
end

-- What cpus-per-gpu or mem-per-gpu (`each`) come to on one node of the pool.
local function by_gres(each, need, pool)
  local total = 0
  for name, count in pairs(each) do
    total = total + count * of_node(need, pool, string.match(name, "^[^:]+"))
  end
  return total
end

-- What cpus-per-gpu or mem-per-gpu (`each`) come to for one task.
local function by_task(each, need)
  local total = 0
  for name, count in pairs(each) do
    total = total + count * gres_of(need.task_gres, string.match(name, "^[^:]+"))
  end
  return total
end

-- Whether the job asks for every kind of gres that cpus-per-gpu or mem-per-gpu count by.
local function has_kinds(each, need)
  for name in pairs(each) do
    local kind = string.match(name, "^[^:]+")
    if gres_of(need.node_gres, kind) + gres_of(need.job_gres, kind) + gres_of(need.task_gres, kind) == 0 then
      return false
    end
  end
  return true
end

local function account_of(job)
  return not blank(job.account) and job.account or job.default_account
end

-- Whether the job's user says that the job may lose a spot machine although Slurm must not requeue it:
-- the tool that submitted it submits it again (policies/launch/spot_use.py).
local function says_spot_ok(job)
  return string.find(" " .. string.gsub(job.comment or "", ";", " ") .. " ", "%sspot=ok%s") ~= nil
end

-- What the job needs, in plain numbers; nil where that cannot be told.
local function needs(job)
  if strange(job) then
    return nil
  end
  local need = {
    node_gres = gres_counts(job.tres_per_node),
    job_gres = gres_counts(job.tres_per_job),
    task_gres = gres_counts(job.tres_per_task),
    gres_cpus = gres_counts(job.cpus_per_tres),
    gres_mem = gres_counts(job.mem_per_tres),
    features = job.features,
    exclusive = number(job.shared, NO_VAL16) == 0,
    interactive = blank(job.script),
    requeue = number(job.requeue, NO_VAL16),
    spot_ok = says_spot_ok(job),
    account = account_of(job),
    mem_node = number(job.min_mem_per_node, NO_VAL64),
    mem_cpu = number(job.min_mem_per_cpu, NO_VAL64),
    time = minutes(job.time_limit),
    time_min = minutes(job.time_min),
    nodes = number(job.min_nodes, NO_VAL),
    max_nodes = job.max_nodes ~= 0 and number(job.max_nodes, NO_VAL) or nil,
    cpus = number(job.min_cpus, NO_VAL) or 1,
    tasks = number(job.num_tasks, NO_VAL),
    node_tasks = number(job.ntasks_per_node, NO_VAL16) or 0,
    task_cpus = number(job.cpus_per_task, NO_VAL16) or 1,
    node_cpus = number(job.pn_min_cpus, NO_VAL16) or 1,
  }
  if not (need.node_gres and need.job_gres and need.task_gres and need.gres_cpus and need.gres_mem) then
    return nil
  end
  -- Since 23.11 `-c 4` also says tres_per_task=cpu:4.
  need.task_cpus = math.max(need.task_cpus, need.task_gres.cpu or 1, 1)
  need.task_gres.cpu = nil
  if not (has_kinds(need.gres_cpus, need) and has_kinds(need.gres_mem, need)) then
    return nil
  end
  return need
end

local function has_features(pool, wanted)
  for name in string.gmatch(wanted or "", "[^&]*") do
    if name ~= "" and not pool.features[name] then
      return false -- also for | [] () * and whatever else is not a plain name
    end
  end
  return true
end

-- A memory limit; Slurm's 0 is none.
local function limit(value)
  value = number(value, NO_VAL64) or 0
  return value > 0 and value or math.huge
end

-- Whether the job gets whole nodes: it asks for them, or the partition gives no others
-- (OverSubscribe=EXCLUSIVE).
local function whole_nodes(need, part)
  return need.exclusive or number(part.max_share, NO_VAL16) == 0
end

-- CPUs of one node that the job's memory request leaves usable; 0 where the node cannot hold it.
local function usable_cpus(pool, need, part)
  local cpus = math.min(pool.cpus, number(part.max_cpus_per_node, NO_VAL) or math.huge)
  local per_node, per_cpu = need.mem_node, need.mem_cpu
  if next(need.gres_mem) then
    per_node = math.max(per_node or 0, by_gres(need.gres_mem, need, pool))
  end
  if not per_node and not per_cpu then
    per_node = number(part.def_mem_per_node, NO_VAL64)
    per_cpu = number(part.def_mem_per_cpu, NO_VAL64)
    if (per_node or 0) == 0 and (per_cpu or 0) == 0 then
      per_node, per_cpu = SITE.def_mem_per_node, SITE.def_mem_per_cpu
    end
  end
  local memory = math.min(pool.memory, limit(part.max_mem_per_node))
  if (per_node or 0) > memory or (per_cpu or 0) > limit(part.max_mem_per_cpu) then
    return 0
  end
  if (per_cpu or 0) > 0 then
    local by_memory = math.floor(memory / per_cpu)
    if whole_nodes(need, part) and by_memory < pool.cpus then
      return 0
    end
    cpus = math.min(cpus, by_memory)
  end
  return cpus
end

-- How many tasks fit on one node by its CPUs, and by the memory that comes with the gres of a task.
local function most_tasks(pool, need, part, cpus)
  local tasks = math.floor(cpus / math.max(need.task_cpus, by_task(need.gres_cpus, need)))
  local task_memory = by_task(need.gres_mem, need)
  if task_memory > 0 then
    local memory = math.min(pool.memory, limit(part.max_mem_per_node))
    tasks = math.min(tasks, math.floor(memory / task_memory))
  end
  return tasks
end

-- How much of the job one node of the pool takes: its usable CPUs and how many tasks.
local function room(pool, need, part)
  local cpus = usable_cpus(pool, need, part)
  local least = math.max(need.node_cpus, by_gres(need.gres_cpus, need, pool))
  if cpus < least or not has_features(pool, need.features) then
    return 0, 0
  end
  local tasks = most_tasks(pool, need, part, cpus)
  for name, count in pairs(need.node_gres) do
    if gres_of(pool.gres, name) < count then
      return 0, 0
    end
  end
  for name, count in pairs(need.task_gres) do
    if count > 0 then
      tasks = math.min(tasks, math.floor(gres_of(pool.gres, name) / count))
    end
  end
  if tasks < math.max(need.node_tasks, 1) then
    return 0, 0
  end
  return cpus, need.node_tasks > 0 and need.node_tasks or tasks
end

-- The pools that take part, roomiest first, each with what its nodes take.
local function fitting(pools, need, part)
  local found = {}
  for _, pool in ipairs(pools) do
    local cpus, tasks = room(pool, need, part)
    if cpus > 0 then
      found[#found + 1] = { pool = pool, cpus = cpus, tasks = tasks }
    end
  end
  table.sort(found, function(a, b)
    if a.tasks ~= b.tasks then
      return a.tasks > b.tasks
    end
    return a.cpus > b.cpus
  end)
  return found
end

-- Whether a set of nodes that holds the job can be named; `most` nodes at most.
local function enough(found, need, most)
  local nodes, cpus, tasks, gres = 0, 0, 0, {}
  for _, one in ipairs(found) do
    local count = math.min(one.pool.count, most - nodes)
    nodes, cpus, tasks = nodes + count, cpus + count * one.cpus, tasks + count * one.tasks
    for name in pairs(need.job_gres) do
      gres[name] = (gres[name] or 0) + count * gres_of(one.pool.gres, name)
    end
  end
  for name, count in pairs(need.job_gres) do
    -- Slurm gives every node of the job one at least.
    if gres[name] == nil or gres[name] < math.max(count, need.nodes or 1) then
      return false
    end
  end
  return nodes >= (need.nodes or 1) and cpus >= need.cpus and tasks >= (need.tasks or 1)
end

-- Here comes job_time.lua.

local function admits_all(allow)
  return blank(allow) or string.upper(allow) == "ALL"
end

local function permits(allow, deny, value)
  if not admits_all(allow) then
    return value ~= nil and in_list(allow, value)
  end
  return blank(deny) or value == nil or not in_list(deny, value)
end

-- Whether a hostlist such as "rack[1-2]n[01-12;20]" has the host. In the brackets ";" stands for ",".
local function has_host(hostlist, host)
  local prefix, ranges, suffix = string.match(hostlist, "^([^%[]*)%[([^%]]*)%](.*)$")
  if not prefix then
    return hostlist == host
  end
  local begins = string.sub(host, 1, #prefix) == prefix
  local digits = begins and string.match(string.sub(host, #prefix + 1), "^%d+") or ""
  for length = 1, #digits do -- the suffix may begin with digits, too
    local text = string.sub(digits, 1, length)
    for low, high in string.gmatch(ranges, "(%d+)%-?(%d*)") do
      local is_padded = length == #low or (length > #low and string.sub(text, 1, 1) ~= "0")
      local last = tonumber(high ~= "" and high or low)
      if is_padded and tonumber(text) >= tonumber(low) and tonumber(text) <= last
        and has_host(suffix, string.sub(host, #prefix + length + 1)) then
        return true
      end
    end
  end
  return false
end

-- Whether AllocNodes, a hostlist, has the host of the job. Slurm checks it again, so a list that we
-- cannot read admits every host.
local function admits_host(part, job)
  local allow = part.allow_alloc_nodes
  if admits_all(allow) then
    return true
  end
  local list = string.gsub(allow, "%b[]", function(brackets)
    return (string.gsub(brackets, ",", ";"))
  end)
  if string.find(string.gsub(list, "%[%d[%d;-]*%]", ""), "[^%w_.,-]") then
    return true
  end
  for hostlist in items(list) do
    if has_host(hostlist, job.alloc_node or "") then
      return true
    end
  end
  return false
end

-- Whether the job names an account that Slurm does not hold its user to: without accounting
-- enforcement anybody may name any, and spend from its budget. Only the default one is known here.
local function borrows(job)
  return SITE.open_accounts == true and not blank(job.account)
    and not blank(job.default_account)
    and string.lower(job.account) ~= string.lower(job.default_account)
end

-- Whether DenyAccounts may name an account above the job's, which then denies the job, too (since
-- 23.02). The filter does not know the tree of accounts. If the default partition denies the same
-- account, a list with this partition changes nothing.
local function may_deny_below(part, default)
  if not SITE.denies_below or not admits_all(part.allow_accounts) then
    return false
  end
  local denied = admits_all(default.allow_accounts) and default.deny_accounts or ""
  for name in items(part.deny_accounts) do
    if not in_list(denied, name) then
      return true
    end
  end
  return false
end

-- Whether the lists of accounts and QOS of the partition admit the job.
local function admits_account(part, job)
  local qos = not blank(job.qos) and job.qos or job.default_qos
  return permits(part.allow_accounts, part.deny_accounts, account_of(job))
    and permits(part.allow_qos, part.deny_qos, qos)
end

-- Whether the partition that the job names may deny its account by an account above it. Slurm accepts
-- the job if one partition of its list does, so it would run in the cloud. An account that the cloud
-- names itself is meant to use it.
local function may_be_denied(part, job, default)
  return not blank(job.partition) and admits_all(part.allow_accounts) and may_deny_below(default, part)
end

local function permitted(part, job, default)
  return part.state_up == UP
    and admits_host(part, job)
    and admits_account(part, job)
    and (account_of(job) == nil
      or not (may_deny_below(part, default) or may_be_denied(part, job, default)))
end

-- Whether each licence of the job is one that the site lists for the cloud. Slurm counts licences for
-- the whole cluster, though most name a file system or a server that only the site's hosts reach.
local function licensed(data, job)
  for item in string.gmatch(job.licenses or "", "[^,|]+") do
    local name = string.gsub(string.lower(item), "[:=]%d+$", "")
    local allowed = data.licenses or {}
    if not allowed[name] and not allowed[string.gsub(name, "@.*$", "")] then
      return false
    end
  end
  return true
end

-- Whether Slurm may start the job anew: as it says itself, else as the site's JobRequeue does.
local function may_requeue(need)
  if need.requeue == nil then
    return SITE.requeue ~= false
  end
  return need.requeue ~= 0
end

-- Whether the job may lose a machine of the cloud: Slurm starts it anew, or its user or the site says
-- that its tool does.
local function bears_loss(data, need)
  local accounts = data.no_requeue_on_spot or {}
  return may_requeue(need) or need.spot_ok or accounts.all == true
    or (need.account ~= nil and accounts[string.lower(need.account)] == true)
end

-- The pools with the nodes that the job may use. A spot machine may be taken away at any time, and a
-- job that must not be requeued would be lost.
local function pools_for(data, need)
  if bears_loss(data, need) then
    return data.pools
  end
  local steady = {}
  for _, pool in ipairs(data.pools) do
    local count = math.min(pool.count, pool.steady or pool.count)
    if count > 0 then
      steady[#steady + 1] = setmetatable({ count = count }, { __index = pool })
    end
  end
  return steady
end

-- Whether the pools can hold the job; `most` nodes at most.
local function pools_hold(pools, data, part, need)
  local most = math.min(need.max_nodes or math.huge, number(part.max_nodes, NO_VAL) or math.huge,
    data.most or math.huge)
  return enough(fitting(pools, need, part), need, most)
end

local function holds(data, part, need, default)
  if need.interactive and not data.interactive then
    return false -- srun and salloc would give up before the machines may have booted
  end
  local most = need.max_nodes or math.huge
  local least = number(part.min_nodes, NO_VAL) or 0
  if least > (need.nodes or 1) or least > most then
    return false
  end
  return time_fits(need, part, default) and pools_hold(pools_for(data, need), data, part, need)
end

-- The nodes and CPUs of a partition of the site; nil where they may grow: dynamic nodes join their
-- partition when their slurmd starts, so it may have none yet. `at_submission`: those of this moment.
local function totals(part, at_submission)
  if SITE.dynamic_nodes and not at_submission then
    return nil, nil
  end
  return number(part.total_nodes, NO_VAL), number(part.total_cpus, NO_VAL)
end

-- Whether the site's partition surely cannot hold the job (judged by what Slurm tells of it): then
-- it would only make EnforcePartLimits=ALL refuse a job that a cloud can run.
local function hopeless(default, need)
  if default.state_up ~= UP then
    return false
  end
  local nodes, time = need.nodes or 1, (need.time_min or need.time) or 0
  local total_nodes, total_cpus = totals(default, SITE.enforces_all)
  return nodes > (total_nodes or math.huge)
    or nodes > (number(default.max_nodes, NO_VAL) or math.huge)
    or need.cpus > (total_cpus or math.huge)
    or time > (minutes(default.max_time) or math.huge)
end

-- The job as its user asked for it. Scripts of sites write the default partition, or one switch, into
-- every job: nobody chose those.
local function as_asked(job, part_list, asked)
  if not asked then
    return job
  end
  local unasked = {}
  if blank(asked.partition) and job.partition == default_of(part_list) then
    unasked.partition = ""
  end
  if (number(asked.req_switch, NO_VAL) or 0) == 0 then
    unasked.req_switch = NO_VAL
  end
  return setmetatable(unasked, {
    __index = function(_, field)
      return job[field]
    end,
  })
end

-- Whether a list may begin with this partition without changing what becomes of the job there.
local function sound(default, job)
  if default.state_up ~= UP and default.state_up ~= SUBMIT_ONLY then
    return false -- drained or inactive: Slurm refuses the job, as before
  end
  -- With a list Slurm accepts a job that only the cloud admits (unless EnforcePartLimits=ALL), so
  -- naming a partition would open its clouds to people whom the partition refuses.
  if not blank(job.partition) and not admits_account(default, job) then
    return false
  end
  -- With a list Slurm takes the smallest MinNodes of its partitions.
  local least = number(default.min_nodes, NO_VAL) or 0
  local asked = number(job.min_nodes, NO_VAL)
  return admits_host(default, job) and (least <= 1 or (asked ~= nil and asked >= least))
end

-- Here comes job_order.lua.

-- The clouds that may be listed for the job, best first.
local function fitting_clouds(job, part_list, need, first)
  local names = {}
  for _, data in ipairs(SITE.partitions or {}) do
    local part = part_list[data.name]
    if part and data.name ~= first and is_open_to(data, job, first, part_list)
      and not (data.public and borrows(job)) and licensed(data, job)
      and permitted(part, job, part_list[first]) and holds(data, part, need, part_list[first]) then
      names[#names + 1] = data.name
    end
  end
  need.data = data_of(job)
  return by_cost(names, part_list, need)
end

-- The first partitions that fit into the list: Slurm refuses a job with a longer one
-- ("Pathname of a file, directory or other parameter too long"; job_mgr.c, _test_job_desc_fields).
local LONGEST_LIST = SITE.longest_list or 1024

local function joined(names)
  local list = names[1] or ""
  for i = 2, #names do
    if #list + 1 + #names[i] > LONGEST_LIST then
      return list
    end
    list = list .. "," .. names[i]
  end
  return list
end

-- The partition list for the job, or nil: leave it alone. Then what its user reads about its limit,
-- the limit to set, and the note about the order of the clouds.
local function partition_list(job, part_list)
  if chosen(job) then
    return nil
  end
  local first, default = first_of(job, part_list)
  local need = first and sound(default, job) and needs(job)
  if not need then
    return nil
  end
  local names = fitting_clouds(job, part_list, need, first)
  if #names == 0 then
    return nil
  end
  if not hopeless(default, need) then
    table.insert(names, 1, first)
  end
  local kept, message, length = of_one_limit(job, need, names, part_list, first)
  if kept[1] == first and #kept == 1 then
    return nil, message
  end
  return joined(kept), message, length, order_note(kept, first)
end

-- The nodes that a job of these partitions must exclude besides those that its user excludes: nodes
-- that may have spot machines, if the job must not be requeued and other nodes of the partition can
-- hold it. If no others can, or the filter does not judge the job, its user has named the partition,
-- and the job stays as it came, because Slurm would refuse it if its other nodes cannot hold it.
-- slurm-elasticd buys its machine on demand, but Slurm may choose a spot machine that is up.
local function spot_nodes(job, part_list, list)
  local need = not any_text(job, { "req_nodes", "reservation", "clusters" }) and needs(job)
  local nodes = {}
  for _, data in ipairs(need and SITE.partitions or {}) do
    local part = in_list(list, data.name) and part_list[data.name]
    if part and not bears_loss(data, need) and pools_hold(pools_for(data, need), data, part, need) then
      for _, pool in ipairs(data.pools) do
        nodes[#nodes + 1] = pool.spot
      end
    end
  end
  return nodes
end

local function exclude(job, nodes)
  if #nodes > 0 then
    local own = blank(job.exc_nodes) and "" or job.exc_nodes .. ","
    job.exc_nodes = own .. table.concat(nodes, ",")
  end
end

-- Here comes job_never.lua.

-- The partition of a public cloud that the job names with an account that is not its user's own.
local function borrowed(job)
  if blank(job.partition) or not borrows(job) then
    return nil
  end
  for _, data in ipairs(SITE.partitions or {}) do
    if data.public and in_list(job.partition, data.name) then
      return data.name
    end
  end
end

-- Here comes job_saving.lua.

-- One change to the job; after an error it is as it came.
local function try(change)
  local ok, why = pcall(change)
  if not ok then
    pcall(function()
      slurm.log_error("%s", "slurm-elastic: job left as it came: " .. tostring(why))
    end)
  end
end

-- Show a sentence to the job's user, as sbatch, srun and salloc print it.
local function tell(message)
  if message and slurm.log_user then
    slurm.log_user("%s", "slurm-elastic: " .. message)
  end
end

-- Why the job is refused; nil for nearly all.
local function refusal(job)
  local _, wrong_data = data_of(job)
  local wrong = wrong_words(job) or wrong_data
  if wrong then
    return wrong
  end
  local partition = borrowed(job)
  return partition and "partition " .. partition .. " is for your default account, "
    .. job.default_account .. ": Slurm does not check who may use "
    .. job.account .. " (AccountingStorageEnforce)"
end

-- The calls so far, and whether the last one refused its job.
local calls, refused_last = 0, false

-- `asked`: what the job asked for before the site's own script saw it (slurm_elastic_wrap).
function slurm_elastic_submit(job_desc, part_list, submit_uid, asked)
  calls, refused_last = calls + 1, false
  local user = "slurm-elastic: uid=" .. tostring(submit_uid)
  local refused
  try(function()
    local why = slurm.log_user and refusal(job_desc)
    tell(why)
    refused = why
  end)
  if refused then
    refused_last = true
    return slurm and slurm.ERROR or -1
  end
  try(function()
    local list, message, length, note = partition_list(as_asked(job_desc, part_list, asked), part_list)
    -- First the exclusion: with the list alone the job could start on a spot machine.
    exclude(job_desc, spot_nodes(job_desc, part_list, list or job_desc.partition or ""))
    if list then
      job_desc.partition = list
      if note then
        local comment = job_desc.admin_comment
        job_desc.admin_comment = blank(comment) and note or comment .. " " .. note
      end
      if length then
        job_desc.time_limit = length
      end
      slurm.log_debug("%s", user .. " partition=" .. list)
    end
    tell(message or not list and named_text(job_desc, part_list) or nil)
  end)
  try(function()
    tell(slurm.log_user and never(job_desc, part_list))
  end)
  try(function()
    tell(slurm.log_user and not_saved(job_desc, part_list))
  end)
  try(function()
    local script = launched(job_desc, part_list) or relayed(job_desc, part_list)
    if script then
      job_desc.script = script
      slurm.log_debug("%s", user .. " script changed for saves")
    end
  end)
  return slurm and slurm.SUCCESS or 0
end

-- The site's slurm_job_submit, and the filter after it. A refusal of the site stands. If the script
-- calls slurm_elastic_submit by itself, the filter has seen the job already, and its refusal stands
-- even if the script does not return it.
function slurm_elastic_wrap(site_submit)
  return function(job_desc, part_list, submit_uid)
    local before = calls
    local asked = { partition = job_desc.partition, req_switch = job_desc.req_switch }
    local code = site_submit(job_desc, part_list, submit_uid)
    -- job_submit/lua takes an answer that is no number for SUCCESS, too.
    if (tonumber(code) or slurm.SUCCESS) ~= slurm.SUCCESS then
      return code
    elseif calls ~= before then
      return refused_last and slurm.ERROR or code
    end
    return slurm_elastic_submit(job_desc, part_list, submit_uid, asked)
  end
end
