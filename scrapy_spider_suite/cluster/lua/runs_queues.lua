-- Sets weights. a: weights by queue, most (queues). Returns 'ok' or 'most'.
local added = 0
for queue in pairs(a.weights) do if not weights[queue] then added = added + 1 end end
if #queues + added > a.most then return {'most'} end
for queue, weight in pairs(a.weights) do redis.call('HSET', QUEUES, queue, weight) end
return {'ok'}
