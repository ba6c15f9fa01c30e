-- A script's view of the world: the time, and the run of the server. Tests replace this text; no
-- argument can.
local function clock()  -- milliseconds since 1970, by Redis
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function server()  -- the id of this run of Redis, and its milliseconds so far
  -- Of a server that keeps all it has acknowledged, all runs are one, without a beginning.
  local durable = redis.pcall('GET', 'suite:durable')
  if type(durable) == 'string' then return durable, math.huge end
  local info = redis.call('INFO', 'server')
  local uptime = string.match(info, 'uptime_in_seconds:(%d+)')
  return string.match(info, 'run_id:(%x+)') or '', uptime and uptime * 1000 or math.huge
end
