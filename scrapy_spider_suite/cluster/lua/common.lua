-- KEYS: crawl, members, facts, holders. ARGV: the arguments as JSON, then bytes.
-- All reads come before the first write: a key of another type, or with foreign data, is refused
-- without a change.
local CRAWL, MEMBERS, FACTS, HOLDERS = unpack(KEYS)
local UNITS = 65536
local a = cjson.decode(ARGV[1])
local run, uptime = server()
local rows = {}  -- those that were read, by name

local function member(name)
  if not rows[name] then
    local text = redis.call('HGET', MEMBERS, name)
    rows[name] = text and parsed(text, MEMBERS) or nil
  end
  return rows[name]
end

local function everyone()
  local flat = redis.call('HGETALL', MEMBERS)
  for i = 1, #flat, 2 do rows[flat[i]] = rows[flat[i]] or parsed(flat[i + 1], MEMBERS) end
  return rows
end

local text = redis.call('GET', CRAWL)
local crawl = text and parsed(text, CRAWL) or nil
local held = redis.call('STRLEN', HOLDERS)
local known = redis.call('HLEN', MEMBERS)
redis.call('HLEN', FACTS)

local function save() redis.call('SET', CRAWL, cjson.encode(crawl)) end

local function put(row)
  rows[row.name] = row
  redis.call('HSET', MEMBERS, row.name, cjson.encode(row))
end

-- Whether its process was heard within *silence*.
local function alive(row, silence)
  return counted(row) and row.incarnation ~= '' and now - row.heard < silence
end

-- Whether another process than that of *name* saw the end, and is about to close.
local function closing(name, silence)
  for _, row in pairs(everyone()) do
    if row.name ~= name and alive(row, silence) and not row.late then return true end
  end
  return false
end

-- Whether each unit has a holder that is a counted member.
local function all_held()
  local holds, holders = {}, redis.call('GET', HOLDERS)
  for _, each in pairs(everyone()) do holds[each.number] = counted(each) end
  for from = 1, 2 * UNITS, 4096 do
    local bytes = {string.byte(holders, from, from + 4095)}
    for i = 1, 4096, 2 do
      if not holds[256 * bytes[i] + bytes[i + 1]] then return false end
    end
  end
  return true
end

-- Owners change. An epoch is the time of its beginning: later epochs are higher, also after a loss of
-- earlier ones.
local function advance()
  crawl.epoch = math.max(crawl.epoch + 1, now)
  crawl.version = crawl.version + 1
  crawl.sums = ''
end

-- The holders are lost, or may be older than the agents' state: no unit has a holder, and each agent
-- must claim its units.
local function begin_era(silence)
  crawl.run = run
  crawl.era = math.max(crawl.era + 1, now)
  crawl.claims = now + (crawl.grace > 0 and crawl.grace or silence)
  crawl.open = crawl.grace > 0
  crawl.met = false  -- see meet.lua
  crawl.moves = crawl.moves + 1
  advance()
  redis.call('SET', HOLDERS, string.rep('\0', 2 * UNITS))
end

-- Members whose lease has ended are dead.
local function bury()
  local first, died = 0, false
  for _, row in pairs(everyone()) do
    if row.ends > 0 and (row.state == 'active' or row.state == 'leaving') then
      if over(row) then
        row.state, died = 'dead', true
        put(row)
      elseif first == 0 or row.ends < first then
        first = row.ends
      end
    end
  end
  crawl.sweep = first
  if died then advance() end
  save()
end

if crawl then
  if crawl.run ~= run or held ~= 2 * UNITS or known ~= crawl.rows then
    begin_era(a.silence)
    crawl.rows = known
    save()
  end
  if crawl.sweep > 0 and crawl.sweep <= now then bury() end
end

-- The caller's row if it may write, otherwise the reason: a later process has its place, its lease is
-- over, or a later call overtook this one.
local function own()
  if not crawl then return nil, 'lost' end
  local row = member(a.name)
  if not row or row.number ~= a.number or row.terms ~= crawl.terms then return nil, 'lost' end
  if row.incarnation ~= a.incarnation then return nil, 'replaced' end
  if a.call <= row.call then return nil, 'late' end
  if not counted(row) then return nil, row.state end
  row.call = a.call
  return row
end

local function answer(code, more, bytes)
  local reply = more or {}
  reply.code, reply.now = code, now
  if crawl then
    reply.id, reply.epoch, reply.era, reply.moves = crawl.id, crawl.epoch, crawl.era, crawl.moves
    reply.claims, reply.round, reply.ended = crawl.claims, crawl.round, crawl.ended
    reply.version = crawl.version
    if a.era ~= crawl.era or a.version ~= crawl.version then
      reply.members = {}
      for _, row in pairs(everyone()) do table.insert(reply.members, row) end
      if #reply.members == 0 then reply.members = nil end
    end
  end
  return {cjson.encode(reply), bytes or ''}
end
