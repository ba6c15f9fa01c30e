-- Sets weights; other queues go as soon as they have no runs. a: weights by queue, most (queues).
-- Returns 'ok' or 'most'.
local function has_runs(queue)
  for _, state in ipairs({'queued', 'running', 'later', 'aside'}) do
    if tonumber(redis.call('HGET', COUNTS, 'runs:' .. state .. ':' .. queue) or 0) > 0 then
      return true
    end
  end
  return false
end

local known = 0
for queue in pairs(a.weights) do known = known + 1 end
for _, queue in ipairs(queues) do
  if not a.weights[queue] then
    if has_runs(queue) then known = known + 1 else redis.call('HDEL', QUEUES, queue) end
  end
end
if known > a.most then return {'most'} end
for queue, weight in pairs(a.weights) do redis.call('HSET', QUEUES, queue, weight) end
return {'ok'}
