-- The two things that a script learns from outside: the time, and whether this is still the same
-- run of the server. Tests put other text in this place; there is no argument that does.
local function clock()  -- milliseconds since 1970, by Redis
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function server()  -- what this run of Redis is known by, and its milliseconds so far
  local info = redis.call('INFO', 'server')
  local uptime = string.match(info, 'uptime_in_seconds:(%d+)')
  return string.match(info, 'run_id:(%x+)') or '', uptime and uptime * 1000 or math.huge
end
