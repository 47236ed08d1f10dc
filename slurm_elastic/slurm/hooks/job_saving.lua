-- How a job's progress is to be saved: the words of its user about it, the launcher before its script,
-- and what is not saved so. A part of slurm_elastic.lua.

local SAVING = SITE.saving or { methods = {} }
local METHODS = {}
for _, method in ipairs(SAVING.methods) do
  METHODS[method] = true
end

-- The method in --constraint=ckpt_METHOD; "none" where it names several: that job is refused later.
local function feature_method(job)
  local found = nil
  for word in string.gmatch(job.features or "", "[%w_.-]+") do
    local method = string.match(word, "^ckpt_(%l+)$")
    if METHODS[method or ""] then
      found = (found == nil or found == method) and method or "none"
    end
  end
  return found
end

-- What the job's comment says: "criu,tcp=close" of --comment=ckpt=criu,tcp=close; nil for nothing.
local function wish(job)
  for word in string.gmatch(job.comment or "", "[^%s;]+") do
    local found = string.match(word, "^ckpt=(.*)$")
    if found then
      return found
    end
  end
  return nil
end

-- The method by the job's own word: its comment's, then that of the features that it asks for.
local function own_method(job)
  local wanted = wish(job)
  return wanted and string.match(wanted, "^[^,]*") or feature_method(job)
end

-- How the job's progress is to be saved: as it says itself, else as the first of its partitions does
-- that says so.
local function checkpoint_method(job, part_list)
  local asked = own_method(job)
  if asked then
    return asked
  end
  for name in items(blank(job.partition) and default_of(part_list) or job.partition) do
    for _, data in ipairs(SITE.partitions or {}) do
      if data.name == name and data.checkpoint then
        return data.checkpoint
      end
    end
  end
  return nil
end

local function one_of(words)
  return "expected one of " .. table.concat(words, ", ")
end

local function has(words, wanted)
  for _, word in ipairs(words) do
    if word == wanted then
      return true
    end
  end
  return false
end

-- What is wrong with one option of a method, or nil. ckptman says the same (config/job_checkpoint.py).
local function wrong_option(method, word)
  local key, equals, value = string.match(word, "^([^=]*)(=?)(.*)$")
  if key == SAVING.bare then
    local fits = equals == "" or string.match(value, "^%d%d?%d?$")
    return not fits and key .. " is '" .. value .. "', expected a number up to 999" or nil
  end
  if key == "" or value == "" then
    return "'" .. word .. "' is no KEY=VALUE"
  end
  local keys = {}
  for _, option in ipairs(SAVING.options[method]) do
    if option.key == key then
      local fits = #option.values == 0 or has(option.values, value)
      return not fits and word .. ": " .. one_of(option.values) or nil
    end
    keys[#keys + 1] = option.key
  end
  return key .. ": " .. one_of(keys)
end

local function wrong_wish(wanted)
  local method = string.match(wanted, "^[^,]*")
  if not METHODS[method] then
    return one_of(SAVING.offered)
  end
  for word in string.gmatch(wanted, ",([^,]*)") do
    local wrong = wrong_option(method, word)
    if wrong then
      return wrong
    end
  end
  return nil
end

-- Whether a word may have been meant for "ckpt": chkpt, checkpoint, cpkt, CKPT.
local NEAR = { ckpt = true, ckp = true, ckt = true, cpkt = true, cktp = true, kcpt = true }

local function is_near(key)
  local short = string.gsub(string.lower(key), "[_-]", "")
  short = string.gsub(short, "^che?c?k", "ck")
  short = string.gsub(short, "poi?n?t", "pt")
  return NEAR[string.gsub(short, "(.)%1", "%1") .. ""] == true
end

-- The script behind its method's launcher, or nil: left alone. Only batch jobs have one; the
-- methods with a launcher save what runs on one node.
local MARK = "#__SLURM_ELASTIC_SCRIPT__"
local LONGEST = SITE.longest_script or 4194304 -- slurm.conf(5), max_script_size

local function is_on_one_node(job)
  return (number(job.min_nodes, NO_VAL) or 1) <= 1 and number(job.het_job_offset, NO_VAL) == nil
end

-- Whether the job is one of several nodes that is saved whole: only by its own word, as its program
-- must be started by mpirun.
local function spans_nodes(job)
  return not is_on_one_node(job) and number(job.het_job_offset, NO_VAL) == nil
    and has(SAVING.several_nodes or {}, own_method(job) or "")
end

-- Random digits. Two jobs must not get the same; nobody gains anything by guessing them.
local function token()
  local file = io.open("/dev/urandom", "rb")
  local bytes = file and file:read(16) or os.time() .. tostring({}) .. os.clock()
  if file then
    file:close()
  end
  return (string.gsub(bytes, ".", function(char)
    return string.format("%02x", string.byte(char))
  end))
end

local function launched(job, part_list)
  if type(job.script) ~= "string" or string.sub(job.script, 1, 2) ~= "#!" then
    return nil
  end
  local fits = (is_on_one_node(job) or spans_nodes(job)) and job.cron_job ~= true
  local launcher = (SITE.launchers or {})[checkpoint_method(job, part_list) or "none"]
  if not launcher or not fits or #launcher + #job.script > LONGEST then
    return nil
  end
  if string.find(job.script, MARK, 1, true) then
    return nil
  end
  return (string.gsub(launcher, "@TOKEN@", token())) .. job.script
end

-- Words before a command that do not end the search for it; so do assignments, options and numbers.
local BEFORE = {}
for word in string.gmatch("{ ! then do else if elif while until time exec command env eval nice"
  .. " nohup numactl stdbuf taskset timeout", "%S+") do
  BEFORE[word] = true
end
local LONGEST_LINE = 4096

local function starts_srun(line)
  local code = string.gsub(string.gsub(line, "^%s*#.*$", ""), "%s#.*$", "")
  for command in string.gmatch(code, "[^;&|()`]+") do
    for word in string.gmatch(command, "%S+") do
      if word == "srun" or string.match(word, "^/%S*/srun$") then
        return true
      end
      if not BEFORE[word] and not string.match(word, "^[%a_][%w_]*=")
        and not string.match(word, "^%-") and not string.match(word, "^%d+[smhd]?$") then
        break
      end
    end
  end
  return false
end

-- Whether a line of a shell's script starts a step. A hint for its user: a step that is started
-- otherwise is found out by the first save.
local function has_steps(script)
  if not string.match(script, "^#![^\n]*sh") or not string.find(script, "srun", 1, true) then
    return false
  end
  for line in string.gmatch(script, "[^\n]+") do
    if #line <= LONGEST_LINE and string.find(line, "srun", 1, true) and starts_srun(line) then
      return true
    end
  end
  return false
end

-- The PMI of a step that a line of a shell's script starts, such as pmix; nil where there is none.
local function pmi_of_steps(script)
  if not string.find(script, "srun", 1, true) then
    return nil
  end
  for line in string.gmatch(string.gsub(script, "\\\n", " "), "[^\n]+") do
    local pmi = string.match(line, "%-%-mpi[= ]+(pmi%w*)")
    if pmi and #line <= LONGEST_LINE and starts_srun(line) then
      return pmi
    end
  end
  return nil
end

-- Whether a shell that runs the script dies of the signal to save itself: it neither catches it nor
-- becomes its program. ckptman says the same (policies/checkpoint/batch_script.py).
local function dies_of_signals(script)
  local first = string.match(script, "^#!%s*([^\n]*)")
  local shell = first and string.match(string.gsub(first, "^%S*env%s+", "") .. " ", "^([%w/_.-]*sh)%s")
  shell = shell and string.match(shell, "([^/]*)$")
  if not has({ "sh", "bash", "dash", "ksh", "zsh" }, shell) then
    return false
  end
  for line in string.gmatch(script, "[^\n]+") do
    if not string.match(line, "^%s*#") then
      for _, word in ipairs({ "trap", "exec", "eval", "source" }) do
        if string.find(line, "%f[%w_]" .. word .. "%f[^%w_]") then
          return false
        end
      end
      if string.find(";" .. line, "[%s;&|({]%.[ \t]") then
        return false
      end
    end
  end
  return true
end

-- The script with the relay (signal_relay.sh) after its first line, or nil: left alone. Only a shell that
-- would die of the signal gets one.
local function relayed(job, part_list)
  local script = job.script
  if checkpoint_method(job, part_list) ~= "signal" or type(script) ~= "string" or job.cron_job == true
    or not SAVING.relay or not dies_of_signals(script) or #script + #SAVING.relay > LONGEST then
    return nil
  end
  local options = { signal = SAVING.signal, stop_signal = SAVING.stop_signal }
  for key, value in string.gmatch(wish(job) or "", ",([%w_]+)=([^,]*)") do
    options[key] = value
  end
  local save, stop = options.signal, options.stop_signal or options.signal
  local masks, line_end = SAVING.masks, string.find(script, "\n", 1, true)
  if not (masks[save] and masks[stop] and line_end) then
    return nil
  end
  local words = {
    SAVE = masks[save] .. " " .. save, STOP = masks[stop] .. " " .. stop,
    LAUNCHERS = own_method(job) == "signal" and "yes" or "no",
  }
  return string.sub(script, 1, line_end) .. string.gsub(SAVING.relay, "@(%u+)@", words) .. "\n"
    .. string.sub(script, line_end + 1)
end

-- Why the job's comment cannot be followed, or is no word to us though it was meant so; nil where
-- there is nothing to say. Without its data the filter knows no words.
local function wrong_words(job)
  local wanted = #SAVING.methods > 0 and wish(job)
  -- On a site that saves no jobs "ckpt=" is a word of the user's own, such as a file's name.
  local is_ours = wanted and (SAVING.configured or METHODS[string.match(wanted, "^[^,]*")])
  if wanted and not is_ours then
    return nil
  elseif wanted then
    local wrong = wrong_wish(wanted)
    local pmi = not wrong and spans_nodes(job) and launched(job) and pmi_of_steps(job.script)
    if pmi then
      wrong = "a program started by srun --mpi=" .. pmi .. " cannot be saved. It would help to "
        .. SAVING.by_mpirun
    end
    if not wrong and string.match(wanted, "^signal%f[^%w]") and number(job.het_job_offset, NO_VAL) then
      wrong = SAVING.no_components
    end
    return wrong and "--comment=ckpt=" .. string.sub(wanted, 1, 200) .. ": " .. wrong
  end
  local comment = job.comment or ""
  if string.match(comment, "^%s*[Cc][Kk][Pp][Tt]%s*$") and SAVING.configured then
    return "--comment=ckpt: expected ckpt=METHOD, METHOD one of " .. table.concat(SAVING.offered, ", ")
  end
  for word in string.gmatch(comment, "[^%s;]+") do
    local key, method = string.match(word, "^([%w_-]+)[=:]([^,]*)")
    if METHODS[method or ""] and is_near(key) then
      return "--comment=" .. string.sub(word, 1, 200) .. ": expected ckpt=" .. method
    end
  end
  return nil
end

-- What of the job is not saved, with what would help; nil where there is nothing to say.
local function not_saved(job, part_list)
  local method = own_method(job)
  -- A site that saves no jobs leaves "ckpt=" to its users, but a word like "sgnal" names no file.
  local is_unknown = method and #SAVING.methods > 0 and not METHODS[method]
  if is_unknown and not SAVING.configured and string.match(method, "^%l+$") then
    return "this job is not saved: --comment=ckpt=" .. string.sub(method, 1, 200) .. ": "
      .. one_of(SAVING.offered)
  end
  if method and has(SAVING.without_directory or {}, method) then
    return "this job is not saved: " .. method .. " " .. SAVING.no_directory
      .. ". The administrators can set it"
  end
  if method and (SITE.launchers or {})[method] then
    local remedy = blank(job.script) and SAVING.by_sbatch
      or not is_on_one_node(job) and not spans_nodes(job) and SAVING.on_one_node
    if remedy then
      return "this job is not saved: " .. method .. " " .. SAVING.one_node
        .. ". It would help to " .. remedy
    end
  end
  if method == "signal" and type(job.script) == "string" and dies_of_signals(job.script)
    and not relayed(job, part_list) then
    return "this job is not saved: " .. SAVING.uncaught .. ". It would help to " .. SAVING.catch
  end
  if launched(job, part_list) and has_steps(job.script) then
    return "steps (srun) are not saved by " .. checkpoint_method(job, part_list)
      .. ", and the job is not while one runs. It would help to "
      .. (spans_nodes(job) and SAVING.by_mpirun or SAVING.without_steps)
  end
  return nil
end

