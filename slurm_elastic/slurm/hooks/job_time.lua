-- Time limits: which clouds keep a job's, and what a job that names none gets. A part of
-- slurm_elastic.lua.

-- A job without a limit gets DefaultTime of the FIRST partition of its list (22.05, job_mgr.c); if
-- that has none, each partition's DefaultTime or else MaxTime. It is not listed where it would be cut
-- shorter than at the site's default, unless our DefaultTime says what such jobs get here.
local function time_fits(need, part, default)
  local most = minutes(part.max_time) or math.huge
  local wanted = need.time or minutes(default.default_time)
  if not wanted and minutes(part.default_time) == nil then
    wanted = minutes(default.max_time) or math.huge
  end
  return wanted == nil or wanted <= most
end

-- The limit that a job without one gets when it starts in the partition; math.huge is none.
local function own_limit(part)
  return minutes(part.default_time) or minutes(part.max_time) or math.huge
end

local function time_text(count)
  if count == math.huge then
    return "no limit"
  end
  local days, hours = math.floor(count / 1440), math.floor(count / 60) % 24
  return (days > 0 and days .. "-" or "") .. string.format("%02d:%02d:00", hours, count % 60)
end

-- Whether the job is an array of more than one task. "7", "7%1" and "7-7" are single ones.
local function is_array(job)
  if blank(job.array_inx) then
    return false
  end
  local indices = string.gsub(job.array_inx, "%%.*$", "")
  local from, to = string.match(indices, "^(%d+)%-(%d+)$")
  return not (string.match(indices, "^%d+$") or (from and tonumber(from) == tonumber(to)))
end

-- What an array without a limit reads that stays out of clouds.
local function array_advice(lead, others, most)
  local fitting = most == math.huge and "With --time" or "With --time=" .. time_text(most) .. " or less"
  return "without --time the tasks of this array run in partition " .. lead .. " only: all tasks of an"
    .. " array get one time limit, and " .. table.concat(others, ", ") .. " would set another. "
    .. fitting .. " it runs there, too"
end

-- Whether a task that starts in the partition first would hand another limit than `length` on. The
-- backfill scheduler gives a job without a limit MaxTime instead of DefaultTime (backfill.c).
local function hands_on(part, length)
  return own_limit(part) == length and (minutes(part.max_time) or math.huge) == length
end

-- The partitions of `names` that give an array without a limit the same one as the first does, and that
-- limit if the filter has to set it. Slurm writes the limit of the first task that starts into the
-- record of all tasks that wait (node_scheduler.c, select_nodes, before job_array_post_sched): with
-- UNLIMITED of the site's nodes no further task would start in a cloud, and with a cloud's ten minutes
-- the site's nodes end a task.
local function of_array(names, part_list)
  local lead, most, length = part_list[names[1]], math.huge, own_limit(part_list[names[1]])
  local kept, others, must_set = { names[1] }, {}, false
  for i = 2, #names do
    local part = part_list[names[i]]
    -- A limit that is set may be over MaxWall of an association or a QOS: Slurm would have lowered it.
    local settable = length < math.huge and not SITE.held_accounts
    if own_limit(part) == length and (settable or hands_on(part, length)) then
      kept[#kept + 1] = names[i]
      must_set = must_set or not hands_on(part, length)
    else
      others[#others + 1] = names[i]
      most = math.min(most, minutes(part.max_time) or math.huge)
    end
  end
  most = math.min(most, minutes(lead.max_time) or math.huge)
  local advice = #others > 0 and array_advice(names[1], others, most) or nil
  return kept, advice, must_set and length or nil
end

-- What a job without a limit reads that a cloud ends sooner than the first partition of its list.
local function shorter_text(names, part_list)
  local longest, shorter = own_limit(part_list[names[1]]), {}
  for i = 2, #names do
    local here = own_limit(part_list[names[i]])
    if here < longest then
      shorter[#shorter + 1] = time_text(here) .. " in partition " .. names[i]
    end
  end
  return #shorter > 0 and "without --time this job may end after " .. table.concat(shorter, ", ")
    .. " (in " .. names[1] .. ": " .. time_text(longest) .. ")" or nil
end

-- Slurm gives a job without a limit DefaultTime of the first partition of its list at submission. Where
-- that is a cloud's, later ones may not allow as much. The first partition is a cloud if the site's own
-- nodes cannot hold the job: its user then reads the limit that the cloud sets.
local function of_first(names, part_list, first)
  local wanted, kept = minutes(part_list[names[1]].default_time), {}
  for _, name in ipairs(names) do
    if wanted <= (minutes(part_list[name].max_time) or math.huge) then
      kept[#kept + 1] = name
    end
  end
  local is_shorter = names[1] ~= first and wanted < own_limit(part_list[first])
  return kept, is_shorter and "without --time this job may end after " .. time_text(wanted)
    .. " in partition " .. table.concat(kept, ", ") or nil
end

-- What a job without a limit reads that names a cloud by itself, if the site's default is longer.
local function named_text(job, part_list)
  if blank(job.partition) or minutes(job.time_limit) then
    return nil
  end
  local lead = part_list[string.match(job.partition, "^[^,]+")]
  local _, default = default_of(part_list)
  for _, data in ipairs(SITE.partitions or {}) do
    local part = in_list(job.partition, data.name) and part_list[data.name]
    local here = part and (lead and minutes(lead.default_time) or own_limit(part))
    if here and here < (default and own_limit(default) or math.huge) then
      return "without --time this job may end after " .. time_text(here) .. " in partition " .. data.name
    end
  end
  return nil
end

-- The partitions of `names` that a job may have together, what its user reads about its limit, and the
-- limit (minutes) to set; nil to set none. `first`: the site's partition of the job.
local function of_one_limit(job, need, names, part_list, first)
  local lead = part_list[names[1]]
  if need.time then
    return names, nil
  elseif minutes(lead.default_time) then
    return of_first(names, part_list, first)
  end
  if is_array(job) then
    return of_array(names, part_list)
  end
  return names, shorter_text(names, part_list)
end
