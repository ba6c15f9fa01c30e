-- An agent's pulse. Returns whether it was taken (0: its columns are not known), and whether the
-- caller rolls up.
-- KEYS: pulses, columns, roller. ARGV: agent, token, pulse, id of its columns, milliseconds of a lease
-- (0 ends it), most bytes of all pulses, ids of columns and the columns as JSON.
local PULSES, COLUMNS, ROLLER = unpack(KEYS)
local agent, token, pulse, id, lease, bytes = unpack(ARGV)
for i = 7, #ARGV, 2 do redis.call('HSET', COLUMNS, ARGV[i], ARGV[i + 1]) end
if redis.call('HEXISTS', COLUMNS, id) == 0 then return {0, 0} end
local room = (redis.call('HLEN', PULSES) + 1) * #pulse <= tonumber(bytes)
if room or redis.call('HEXISTS', PULSES, agent) == 1 then
  redis.call('HSET', PULSES, agent, string.format('%015d', clock()) .. pulse)
  redis.call('PEXPIRE', PULSES, 60000)
end
local holder = redis.call('GET', ROLLER)
if holder and holder ~= token then return {1, 0} end
if lease == '0' then
  redis.call('DEL', ROLLER)
  return {1, 0}
end
redis.call('SET', ROLLER, token, 'PX', lease)
return {1, 1}
