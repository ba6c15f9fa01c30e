-- Puts back some tasks of a fetcher whose lease and longest delay are over, and runs that failed and
-- are due. a: most (entries of each). Returns how many.
local moved = 0
local name = redis.call('ZRANGEBYSCORE', FETCHERS, '-inf', now, 'LIMIT', 0, 1)[1]
local text = name and redis.call('HGET', MEMBERS, name)
local row = text and parsed(text, MEMBERS) or nil
if row and counted(row) and not over(row) then  -- its lease was renewed since it last asked
  local known = redis.call('HGET', CALLS, name)
  local delay = known and cmsgpack.unpack(known)[3] or 0
  redis.call('ZADD', FETCHERS, row.ends > 0 and row.ends + delay or '+inf', name)
elseif name then
  local TASKS = tasks_of(name)
  for _ = 1, a.most do  -- not by HSCAN: its first buckets may be empty for ever
    local id = redis.call('HRANDFIELD', TASKS)
    if not id then break end
    local queue, slot, run, progress, failures = unpack(cmsgpack.unpack(redis.call('HGET', TASKS, id)))
    redis.call('HDEL', TASKS, id)
    redis.call('HSET', STARTED, id, cmsgpack.pack({progress, failures}))
    count(queue, run, 'running', 'queued')
    push(queue, slot, run, true)
    release(name, slot)
    moved = moved + 1
  end
  if redis.call('EXISTS', TASKS) == 0 then redis.call('ZREM', FETCHERS, name) end
end
for _, packed in ipairs(redis.call('ZRANGEBYSCORE', LATER, '-inf', now, 'LIMIT', 0, a.most)) do
  local queue, slot, run = unpack(cmsgpack.unpack(packed))
  redis.call('ZREM', LATER, packed)
  count(queue, run, 'later', 'queued')
  push(queue, slot, run)
  moved = moved + 1
end
save_counts()
return {moved}
