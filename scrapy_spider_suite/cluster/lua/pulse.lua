-- Pulses of a process and its queues, or a question. Returns whether the columns are known, whether the
-- caller rolls up (2: since now), and how many pulses of those that are named wait for that.
-- KEYS: pulses, taken, rolled, columns, roller. ARGV: token, milliseconds of a lease (0 ends it), most
-- bytes of all pulses, how many (process, pulse or '', id of its columns), these, ids of columns and the
-- columns as JSON.
local PULSES, TAKEN, ROLLED, COLUMNS, ROLLER = unpack(KEYS)
local token, lease, bytes, count = unpack(ARGV)
local last = 4 + 3 * count
for i = last + 1, #ARGV, 2 do redis.call('HSET', COLUMNS, ARGV[i], ARGV[i + 1]) end
for i = 7, last, 3 do
  if redis.call('HEXISTS', COLUMNS, ARGV[i]) == 0 then return {0, 0, 0} end
end
local waits = 0
for i = 5, last, 3 do
  local process, pulse = ARGV[i], ARGV[i + 1]
  if pulse ~= '' then
    local known = redis.call('HEXISTS', PULSES, process) + redis.call('HEXISTS', ROLLED, process) > 0
    local there = redis.call('HLEN', PULSES) + redis.call('HLEN', ROLLED)
    if known or (there + 1) * #pulse <= tonumber(bytes) then
      redis.call('HSET', PULSES, process, string.format('%015d', clock()) .. pulse)
      redis.call('PEXPIRE', PULSES, 60000)
    end
  end
  waits = waits + redis.call('HEXISTS', PULSES, process) + redis.call('HEXISTS', TAKEN, process)
end
local holder = redis.call('GET', ROLLER)
if holder and holder ~= token then return {1, 0, waits} end
if lease == '0' then
  redis.call('DEL', ROLLER)
  return {1, 0, waits}
end
redis.call('SET', ROLLER, token, 'PX', lease)
return {1, holder and 1 or 2, waits}
