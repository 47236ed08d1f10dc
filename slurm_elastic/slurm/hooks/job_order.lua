-- In which order a job uses the clouds. A part of slurm_elastic.lua.
--
-- slurm-elasticd publishes the prices and the room of all pools (slurm/hooks/order_file.py). The cost
-- of a job and the order are calculated here as in policies/launch/pool_order.py; a property test
-- compares the two.

local ORDER = SITE.order or {}
local FUTURE_S = 60 -- a clock that was set back by less does not matter
local MARKET_ORDER = ORDER.markets or {}

local GIGABYTES = { M = 0.001, G = 1.0, T = 1000.0 }
local NO_DATA = { gb_in = 0, gb_out = 0 }

-- A size such as "120G" in GB, as policies/launch/job_data.py reads it; nil for another form.
local function gigabytes(text)
  local number, unit = string.match(text, "^([%d.]+)([MGT])$")
  local whole, dot, part = string.match(number or "", "^(%d+)(%.?)(%d*)$")
  if not whole or #whole > 9 or #part > 3 or (dot == ".") ~= (part ~= "") then
    return nil
  end
  return tonumber(number) * GIGABYTES[unit]
end

-- The data that a job moves by its comment, and what is wrong with that word.
local function data_of(job)
  local word = string.match(" " .. string.gsub(job.comment or "", ";", " "), "%sdata=(%d[^%s]*)")
  if not word or not ORDER.counts_data then
    return NO_DATA, nil
  end
  local first, second = string.match(word, "^([^/]*)/(.*)$")
  local gb_in = gigabytes(first or word)
  local gb_out = gb_in
  if second then
    gb_out = gigabytes(second)
  end
  if not gb_in or not gb_out then
    return NO_DATA, "--comment=data=" .. string.sub(word, 1, 200) .. ": expected " .. ORDER.data_form
  end
  return { gb_in = gb_in, gb_out = gb_out }, nil
end

local function read_pool(line)
  local name, partition, boot, on_demand, rest =
    string.match(line, "^pool (%S+) (%S+) (%S+) (%S+) ?(.*)$")
  local pool = { partition = partition, boot = tonumber(boot),
    on_demand = tonumber(on_demand) or math.huge, keys = {}, offers = {}, lease = 1,
    price_in = 0, price_out = 0, bandwidth = math.huge }
  for key, value in string.gmatch(rest or "", "(%S+)=(%S+)") do
    pool.keys[key] = value == "inf" and math.huge or tonumber(value)
  end
  return name, pool
end

-- The published keys and pools; nil without a file that is new enough.
local function read_order(path, now)
  local file = path and io.open(path, "r")
  if not file then
    return nil
  end
  local text = file:read("*a")
  file:close()
  local at, keys = string.match(text, "^slurm%-elastic%-order 1\nat (%d+)\nkeys ([^\n]*)\n.*\nend\n$")
  local age = at and now - tonumber(at)
  if not age or age > ORDER.max_age or age < -FUTURE_S then
    return nil
  end
  local published, pool = { keys = {}, pools = {} }, nil
  for key in string.gmatch(keys, "%S+") do
    published.keys[#published.keys + 1] = key
  end
  for line in string.gmatch(text, "[^\n]+") do
    if string.sub(line, 1, 5) == "pool " then
      local name
      name, pool = read_pool(line)
      published.pools[name] = pool
    elseif string.sub(line, 1, 6) == "lease " and pool then
      pool.lease = tonumber(string.sub(line, 7))
    elseif string.sub(line, 1, 8) == "traffic " and pool then
      local price_in, price_out, bandwidth = string.match(line, "^traffic (%S+) (%S+) (%S+)$")
      pool.price_in, pool.price_out = tonumber(price_in), tonumber(price_out)
      pool.bandwidth = tonumber(bandwidth) or math.huge
    elseif string.sub(line, 1, 6) == "offer " and pool then
      local room, market, price, lost, max_run =
        string.match(line, "^offer (%S+) (%S+) (%S+) (%S+) (%S+)$")
      pool.offers[#pool.offers + 1] = { room = tonumber(room), market = market,
        price = tonumber(price), lost = tonumber(lost), max_run = tonumber(max_run) or math.huge }
    end
  end
  return published
end

-- The offers that last until the end of a job of so many seconds: a reservation may end before.
local function lasting(pool, seconds)
  local offers = {}
  for _, offer in ipairs(pool.offers) do
    if seconds <= offer.max_run then
      offers[#offers + 1] = offer
    end
  end
  return offers
end

-- How long (s) the job's data moves, while its machines are paid, and what that costs ($).
local function transfer_s(pool, data)
  return (data.gb_in + data.gb_out) * 8000 / pool.bandwidth
end

local function traffic_cost(pool, data)
  return data.gb_in * pool.price_in + data.gb_out * pool.price_out
end

-- The hours that are paid for a machine of so many seconds: whole leases. The rule and its minimum
-- are those of base/billing.py.
local function billed_hours(pool, seconds)
  if pool.lease > 1 then
    return math.max(math.ceil(seconds / pool.lease), 1) * pool.lease / 3600
  end
  return math.max(seconds, 60) / 3600
end

-- What the job costs ($) on so many machines of the pool for so many seconds.
local function job_cost(pool, machines, seconds, with_risk, data)
  local offers, lacking, dollars = lasting(pool, seconds), machines, 0
  if #offers == 0 then
    return math.huge
  end
  local paid_ahead_s = pool.boot + transfer_s(pool, data)
  for i, offer in ipairs(offers) do
    local count = i == #offers and lacking or math.min(offer.room, lacking)
    local lost = with_risk and offer.lost or 0
    dollars = dollars + count * offer.price * billed_hours(pool, paid_ahead_s + seconds * (1 + lost))
    lacking = lacking - count
  end
  return dollars + traffic_cost(pool, data)
end

local function key_of(name, pool, machines, seconds, on_demand, data)
  if name == "price" or name == "risk" then
    return job_cost(pool, machines, seconds, name == "risk", data)
  elseif name ~= "market" then
    return pool.keys[name] or math.huge
  end
  local offers = lasting(pool, seconds)
  if #offers == 0 then
    return math.huge
  end
  local market = offers[1].market
  local dear = market == "spot" and job_cost(pool, machines, seconds, false, data) >= on_demand
  return dear and ORDER.spot_not_cheaper or MARKET_ORDER[market]
end

-- Whether the numbers of `a` come before those of `b`.
local function before(a, b)
  for i = 1, #a do
    if a[i] ~= b[i] then
      return a[i] < b[i]
    end
  end
  return false
end

-- The partitions in the order of the job, of `rows` in the order of the file. A row is a partition
-- with the `pools` that can hold the job: their published terms and the `machines` that it takes.
local function order_partitions(rows, keys, seconds, data)
  local on_demand = math.huge
  for _, row in ipairs(rows) do
    for _, one in ipairs(row.pools) do
      local terms = one.terms
      local hours = billed_hours(terms, terms.boot + transfer_s(terms, data) + seconds)
      on_demand = math.min(on_demand, hours * terms.on_demand * one.machines + traffic_cost(terms, data))
    end
  end
  local sorted = {}
  for _, row in ipairs(rows) do
    local chosen = row.pools[1]
    for _, one in ipairs(row.pools) do
      if chosen.terms.keys.available ~= 0 and one.terms.keys.available == 0 then
        chosen = one
      end
    end
    local item = { name = row.name, keys = {} }
    for i, key in ipairs(keys) do
      item.keys[i] = key_of(key, chosen.terms, chosen.machines, seconds, on_demand, data)
    end
    local place = #sorted + 1
    -- Equal rows keep the order of the file; table.sort would not keep it.
    while place > 1 and before(item.keys, sorted[place - 1].keys) do
      place = place - 1
    end
    table.insert(sorted, place, item)
  end
  return sorted
end

-- How many nodes of a pool the job takes, as verdict.need says it.
local function machines_of(pool, need)
  local count = math.max(need.nodes or 1, math.ceil(need.cpus / pool.cpus))
  for name, asked in pairs(need.job_gres) do
    local has = gres_of(pool.gres, name)
    count = has > 0 and math.max(count, math.ceil(asked / has)) or count
  end
  return count
end

-- The terms for a job that must stay off spot machines. Spot machines may suffice for the pool, so that no
-- on-demand offer is among its offers.
local function without_spot(terms)
  local offers, has_on_demand = {}, false
  for _, offer in ipairs(terms.offers) do
    if offer.market ~= "spot" then
      offers[#offers + 1] = offer
      has_on_demand = has_on_demand or offer.market == "on-demand"
    end
  end
  if terms.on_demand < math.huge and not has_on_demand then
    offers[#offers + 1] =
      { room = 0, market = "on-demand", price = terms.on_demand, lost = 0, max_run = math.huge }
  end
  return setmetatable({ offers = offers }, { __index = terms })
end

-- The names of partitions in the order of the job's cost; nil without published prices.
local function ordered(names, part_list, need)
  local published = read_order(ORDER.path, os.time())
  if not published then
    return nil
  end
  local rows = {}
  for _, name in ipairs(names) do
    local row = { name = name, pools = {} }
    for _, data in ipairs(SITE.partitions) do
      for _, pool in ipairs(data.name == name and pools_for(data, need) or {}) do
        local terms = published.pools[pool.name]
        if terms and room(pool, need, part_list[name]) > 0 then
          terms = bears_loss(data, need) and terms or without_spot(terms)
          row.pools[#row.pools + 1] = { terms = terms, machines = machines_of(pool, need) }
        end
      end
    end
    if #row.pools == 0 then
      return nil -- a pool that slurm-elasticd does not know yet: the file is of another configuration
    end
    rows[#rows + 1] = row
  end
  local minutes_asked = need.time and need.time < math.huge and need.time
  local seconds = minutes_asked and minutes_asked * 60 or ORDER.default_run
  local sorted = {}
  for i, item in ipairs(order_partitions(rows, published.keys, seconds, need.data or NO_DATA)) do
    sorted[i] = item.name
  end
  return sorted
end

-- The same; as they come if there is nothing to order by. A file that cannot be read, such as one of
-- another release, must not cost the job its list.
local function by_cost(names, part_list, need)
  if #names < 2 then
    return names
  end
  local is_ordered, sorted = pcall(ordered, names, part_list, need)
  return is_ordered and sorted or names
end

-- The note in the job's AdminComment that its order is ours, so that slurm-elasticd may change it: a
-- user's own list looks the same in squeue, where slurmctld shows the partition that it tried last
-- first. nil without several clouds after the site's partition.
local function order_note(list, first)
  if list[1] ~= first or #list < 3 then
    return nil
  end
  return "[slurm-elastic clouds=" .. table.concat(list, ",", 2) .. "]"
end
