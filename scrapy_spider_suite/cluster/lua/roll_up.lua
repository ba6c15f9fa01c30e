-- Writes the rows made of the pulses that were handed out before, and hands out the next ones. Pulses
-- stay in *taken* until their rows are written: another agent may go on there.
-- KEYS: roller, pulses, taken, rolled, keys of rows. ARGV: token, number of the pulses handed out
-- before or '', 1 to hand out the rolled pulses, too; for each row its place and bytes; for each
-- key the seconds for which it is kept come first.
-- Returns the time and the number of the pulses, the pulses by agent, and the rolled ones.
local ROLLER, PULSES, TAKEN, ROLLED = unpack(KEYS)
if redis.call('GET', ROLLER) ~= ARGV[1] then return {} end
local now = clock()
if ARGV[2] ~= '' and redis.call('HGET', TAKEN, '') == ARGV[2] then
  for i = 5, #KEYS do
    local at = 4 + 3 * (i - 5)
    redis.call('HSET', KEYS[i], ARGV[at + 1], ARGV[at + 2])
    redis.call('EXPIRE', KEYS[i], ARGV[at])
  end
  redis.call('HDEL', TAKEN, '')
  local flat = redis.call('HGETALL', TAKEN)
  for i = 1, #flat, 2 do redis.call('HSET', ROLLED, flat[i], flat[i + 1]) end
  redis.call('PEXPIRE', ROLLED, 86400000)
  redis.call('DEL', TAKEN)
end
if redis.call('EXISTS', TAKEN) == 0 and redis.call('EXISTS', PULSES) == 1 then
  redis.call('RENAME', PULSES, TAKEN)
  redis.call('HSET', TAKEN, '', now)
  redis.call('PEXPIRE', TAKEN, 86400000)
end
local rolled = ARGV[3] == '1' and redis.call('HGETALL', ROLLED) or {}
local taken = redis.call('HGETALL', TAKEN)
-- One string each: a client reads thousands of them slowly.
return {now, redis.call('HGET', TAKEN, '') or '', cmsgpack.pack(taken), cmsgpack.pack(rolled)}
