-- Runs that were set aside go on. a: ids, queue ('': that of each run), drop (they are forgotten).
-- Returns 'ok' and which were there; or 'queue'.
if a.queue ~= '' and not weights[a.queue] then return {'queue'} end
local done = {}
for i, id in ipairs(a.ids) do
  local packed = redis.call('HGET', ASIDE, id)
  if packed then
    local queue, slot, run, progress = unpack(cmsgpack.unpack(packed))
    local target = a.queue ~= '' and a.queue or queue
    redis.call('HDEL', ASIDE, id)
    count(queue, run, 'aside', nil)
    if a.drop then
      use_run(run, -1)
    else
      redis.call('HSET', STARTED, id, cmsgpack.pack({progress, 0}))
      count(target, run, nil, 'queued')
      push(target, slot, run)
    end
  end
  done[i] = packed and 1 or 0
end
save_counts()
return {'ok', done}
