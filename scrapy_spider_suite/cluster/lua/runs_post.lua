-- Leaves links for the owners of partitions. a: source, number (of the call among those of the source),
-- places (partition, place), most (places that may wait for a partition).
-- A number that is not above the last one was done. Returns 'ok', or 'full': nothing was done.
local last = tonumber(redis.call('HGET', P .. 'sources', a.source) or 0)
if a.number <= last then return {'ok'} end
for _, each in ipairs(a.places) do
  if redis.call('LLEN', inputs_of(each[1])) >= a.most then return {'full'} end
end
for _, each in ipairs(a.places) do
  redis.call('RPUSH', inputs_of(each[1]), each[2])
  redis.call('SADD', INPUTS, each[1])
  use_blob(each[2], 1)
  note('inputs', 1)
end
save_counts()
redis.call('HSET', P .. 'sources', a.source, a.number)
return {'ok'}
