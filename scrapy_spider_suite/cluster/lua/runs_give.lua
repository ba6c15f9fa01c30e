-- Gives runs to fetchers past the lottery. a: runs (queue, slot, run), names (of fetchers).
-- A run goes to the fetcher that has its slot, else to the one of *names* with the fewest tasks; with no
-- fetcher, it comes first in its queue. Returns 'ok' and the fetcher of each run, '' for none; or 'queue'.
for _, each in ipairs(a.runs) do
  if not weights[each[1]] then return {'queue', each[1]} end
end

local function lives(name)
  local text = redis.call('HGET', MEMBERS, name)
  local row = text and parsed(text, MEMBERS) or nil
  return row and row.incarnation ~= '' and counted(row) and not over(row) and row or nil
end

local tasks = {}
for _, name in ipairs(a.names) do
  if lives(name) then tasks[name] = redis.call('HLEN', tasks_of(name)) end
end

local function idlest()
  local found
  for name, n in pairs(tasks) do
    if not found or n < tasks[found] or n == tasks[found] and name < found then found = name end
  end
  return found
end

local given = {}
for i, each in ipairs(a.runs) do
  local queue, slot, run = unpack(each)
  local holder = redis.call('HGET', HOLDERS, slot)
  local name = holder or idlest()
  local row = name and lives(name)
  if row then
    local id = string.sub(run, 1, 8)
    redis.call('HSET', tasks_of(name), id, cmsgpack.pack({queue, slot, run, '', 0}))
    redis.call('HINCRBY', held_by(name), slot, 1)
    hold(name, slot)
    redis.call('RPUSH', added_to(name), id)
    local known = redis.call('HGET', CALLS, name)
    local delay = known and cmsgpack.unpack(known)[3] or 0
    redis.call('ZADD', FETCHERS, row.ends > 0 and row.ends + delay or '+inf', name)
    count(queue, run, nil, 'running')
    tasks[name] = (tasks[name] or 0) + 1
  else
    push(queue, slot, run, true)
    count(queue, run, nil, 'queued')
  end
  use_run(run, 1)
  given[i] = row and name or ''
end
save_counts()
return {'ok', given}
