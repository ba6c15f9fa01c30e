-- Applies one batch at one instant. KEYS: the marker, then each key of the batch. ARGV: the batch
-- (`_pack_batch`). The rules are those of `rate_ledger.py`; times are milliseconds.
local MARKER, RECORD = '>c2ddddc40', '>c2ddddddddc16c16'
local NOBODY, KEEP_MAX, SLACK = string.rep('0', 16), 3600000, 250
local SOONEST, LATEST, FUTURE = 50, 2000, 2 * (1209600000 + 86400000)
local process, era, longest, window, hold, ahead, ends, returns, wishes, asks =
  unpack(cmsgpack.unpack(ARGV[1]))
local now = clock()
local run, uptime = server()
local max, min, floor, ceil = math.max, math.min, math.floor, math.ceil

local function within(values, from, to, bound)
  for i = from, to do
    if not (values[i] >= 0 and values[i] <= bound) then return false end
  end
  return true
end

-- The marker: whether the ledger still has its state.
local function attended()
  local text, found = redis.call('GET', KEYS[1]), nil
  if text then
    local f = #text == 74 and {struct.unpack(MARKER, text)}
    if not f or f[1] ~= 'L1' or not within(f, 2, 5, 2 ^ 53) then
      error('suite-damaged ' .. KEYS[1] .. ' ', 0)
    end
    found = {era = f[2], quiet = f[3], floor = f[4], longest = f[5], run = f[6]:gsub(' +$', '')}
  end
  local span = window + hold + longest
  local before = text
  if not found or found.run ~= run then
    local since = (not found and era > 0) and now or max(0, now - uptime)
    found = {era = max(now, era + 1), quiet = 0, floor = 0, longest = longest, run = run}
    if since + span > now then found.quiet, found.floor = since + span, since + window + hold end
  elseif era > 0 and era ~= found.era then
    found.quiet = max(found.quiet, found.era + span)
    found.floor = max(found.floor, found.era + window + hold)
  end
  if longest > found.longest then
    found.floor = max(found.floor, now - min(found.longest, KEEP_MAX))
    found.longest = longest
  end
  local padded = found.run .. string.rep(' ', 40 - #found.run)
  local after = struct.pack(
    MARKER, 'L1', found.era, found.quiet, found.floor, found.longest, padded)
  -- It outlives every key: if it is gone, the state is lost.
  if after ~= before then redis.call('SET', KEYS[1], after) end
  redis.call('PEXPIRE', KEYS[1], FUTURE)
  return found
end

local marker = attended()
local keep = min(marker.longest, KEEP_MAX)

-- The accounts
local accounts, damaged = {}, {}

local function read(i)
  local text = redis.pcall('GET', KEYS[i])
  if not text then
    return {ended = 0, due = 0, opens = 0, closes = 0, untl = 0, delay = 0, serial = 0,
            claimed = 0, holder = NOBODY, claimant = NOBODY}
  end
  local f = type(text) == 'string' and #text == 98 and {struct.unpack(RECORD, text)}
  local good = f and f[1] == 'L1' and within(f, 2, 7, now + FUTURE)
    and within(f, 8, 8, 2 ^ 53) and within(f, 9, 9, now + FUTURE)
  if not good or f[10]:find('%W') or f[11]:find('%W') then
    damaged[#damaged + 1] = i - 2
    return false
  end
  return {ended = f[2], due = f[3], opens = f[4], closes = f[5], untl = f[6], delay = f[7],
          serial = f[8], claimed = f[9], holder = f[10], claimant = f[11]}
end

local function account(index)
  local i = index + 2
  if accounts[i] == nil then accounts[i] = read(i) end
  return accounts[i]
end

local function drop(a, serial)
  if a.holder == process and a.serial == serial then
    a.holder, a.opens, a.closes, a.untl, a.delay, a.serial = NOBODY, 0, 0, 0, 0, 0
  end
end

local function held(a) return a.holder ~= NOBODY and a.untl > now end

local function has(a, serial) return held(a) and a.holder == process and a.serial == serial end

local function free(a, delay)
  local at = max(a.due, marker.quiet)
  if marker.floor > 0 then at = max(at, marker.floor + min(delay, KEEP_MAX)) end
  if a.ended > 0 then at = max(at, a.ended + delay) end
  if a.holder ~= NOBODY then at = max(at, a.untl + max(a.delay, delay)) end
  return at
end

local function claim(lines, waits, wait, claimed)
  local till = now + wait
  for i, line in ipairs(lines) do
    local a = account(line[1])
    if not claimed and waits[i] > wait - SLACK then
      a.claimant, a.claimed = process, till + SLACK
    elseif claimed and a.claimant == process then
      a.claimant, a.claimed = NOBODY, 0
    end
  end
end

local function grant(lines, opens)
  for _, line in ipairs(lines) do
    local a = account(line[1])
    if a.claimant == process then a.claimant, a.claimed = NOBODY, 0 end
    if not held(a) then a.opens = opens end
    a.closes = opens + window
    a.untl = max(a.untl, a.closes + hold)
    a.holder, a.serial, a.delay = process, line[2], line[3]
  end
  return {opens - now, opens - now + window, 0}
end

local function asked(lines)
  local opens, waits, claimed, whole = now, {}, false, true
  for _, line in ipairs(lines) do whole = account(line[1]) and whole end
  if not whole then return {0, 0, 60000} end
  for i, line in ipairs(lines) do
    local a, wait = account(line[1]), 0
    if has(a, line[2]) then
      opens = max(opens, a.opens)
    else
      local poll = min(max(floor(line[3] / 2), SOONEST), LATEST)
      if a.claimed > now and a.claimant ~= process then
        claimed = true
        wait = max(2 * poll, a.claimed - SLACK - now)
      end
      if held(a) then
        wait = max(wait, poll + max(0, a.opens - now))
      else
        local at = free(a, line[3])
        opens, wait = max(opens, at), max(wait, at - now - ahead)
      end
    end
    waits[i] = wait
  end
  local wait = max(0, opens - now - ahead, unpack(waits))
  if wait <= 0 then return grant(lines, opens) end
  claim(lines, waits, wait, claimed)
  return {0, 0, ceil(wait)}
end

for _, line in ipairs(ends) do
  local a = account(line[1])
  if a then
    local at = max(0, now + 1 - line[3])
    a.ended, a.due = max(a.ended, at), max(a.due, at + line[4])
    drop(a, line[2])
  end
end
for _, line in ipairs(returns) do
  local a = account(line[1])
  if a then drop(a, line[2]) end
end
for _, line in ipairs(wishes) do
  local a = account(line[1])
  if a then a.due = max(a.due, now + line[2]) end
end
local answers = {}
for i, lines in ipairs(asks) do answers[i] = asked(lines) end

for i, a in pairs(accounts) do
  if a then
    local last = max(a.due, a.claimed)
    if a.ended > 0 then last = max(last, a.ended + keep) end
    if a.holder ~= NOBODY then last = max(last, a.untl + max(a.delay, keep)) end
    if last > now then
      local text = struct.pack(RECORD, 'L1', a.ended, a.due, a.opens, a.closes, a.untl, a.delay,
        a.serial, a.claimed, a.holder, a.claimant)
      redis.call('SET', KEYS[i], text, 'PX', ceil(last - now) + 1)
    else
      redis.call('DEL', KEYS[i])
    end
  end
end
return {cmsgpack.pack({marker.era, marker.longest, answers, damaged})}
