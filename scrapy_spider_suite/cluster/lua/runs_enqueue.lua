-- Adds runs. a: source, number (of the call among those of the source), runs (queue, slot, run).
-- A number that is not above the last one was done. Returns 'ok', or 'queue' and an unknown one.
for _, each in ipairs(a.runs) do
  if not weights[each[1]] then return {'queue', each[1]} end
end
local last = tonumber(redis.call('HGET', P .. 'sources', a.source) or 0)
if a.number > last then
  for _, each in ipairs(a.runs) do
    push(each[1], each[2], each[3])
    count(each[1], each[3], nil, 'queued')
    use_run(each[3], 1)
  end
  save_counts()
  redis.call('HSET', P .. 'sources', a.source, a.number)
end
return {'ok'}
