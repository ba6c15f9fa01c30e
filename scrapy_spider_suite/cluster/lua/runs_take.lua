-- What waits for an owner. a: partitions (as keys of a table), most (partitions), each (places of one).
-- Returns for each partition with links: its number, its first places. Takes nothing away.
local found = {}
for _, partition in ipairs(redis.call('SMEMBERS', INPUTS)) do
  if a.partitions[tonumber(partition)] and #found < a.most then
    found[#found + 1] = {partition, redis.call('LRANGE', inputs_of(partition), 0, a.each - 1)}
  end
end
local free = {}
for _, queue in ipairs(queues) do
  free[#free + 1] = queue
  free[#free + 1] = redis.call('SCARD', free_of(queue))
end
return {'ok', found, free}
