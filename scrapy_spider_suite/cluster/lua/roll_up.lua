-- Writes the rows made of the pulses that were handed out before, and hands out the next ones. Pulses
-- stay in *taken* until their rows are written: another agent may go on there, for a minute.
-- KEYS: roller, pulses, taken, rolled, columns, members, keys of rows. ARGV: token, number of the
-- pulses handed out before or '', 1 to hand out the rolled pulses, too, the silent processes as JSON;
-- for each key of a row the seconds for which it is kept, its place and bytes.
-- Returns the time, the columns by their ids, the number of the pulses, the pulses by process, the
-- rolled ones, and the silent processes that will not come back, which are forgotten.
local ROLLER, PULSES, TAKEN, ROLLED, COLUMNS, MEMBERS = unpack(KEYS)
if redis.call('GET', ROLLER) ~= ARGV[1] then return {} end

local function replaced(process)
  if redis.call('HEXISTS', TAKEN, process) + redis.call('HEXISTS', PULSES, process) > 0 then
    return false
  end
  local agent = string.match(string.sub(process, 17), '^[^\n]*')
  local text = redis.call('HGET', MEMBERS, agent)
  return not text or parsed(text, MEMBERS).incarnation ~= string.sub(process, 1, 16)
end

if ARGV[2] ~= '' and redis.call('HGET', TAKEN, '') == ARGV[2] then
  for i = 7, #KEYS do
    local at = 5 + 3 * (i - 7)
    redis.call('HSET', KEYS[i], ARGV[at + 1], ARGV[at + 2])
    redis.call('EXPIRE', KEYS[i], ARGV[at])
  end
  redis.call('HDEL', TAKEN, '')
  local flat = redis.call('HGETALL', TAKEN)
  for i = 1, #flat, 1000 do
    redis.call('HSET', ROLLED, unpack(flat, i, math.min(i + 999, #flat)))
  end
  redis.call('PEXPIRE', ROLLED, 86400000)
  redis.call('DEL', TAKEN)
end
if redis.call('EXISTS', TAKEN) == 0 and redis.call('EXISTS', PULSES) == 1 then
  redis.call('RENAME', PULSES, TAKEN)
  redis.call('HSET', TAKEN, '', now)
  redis.call('PEXPIRE', TAKEN, 60000)
end
local gone = {}
for _, process in ipairs(cjson.decode(ARGV[4])) do
  if replaced(process) then
    redis.call('HDEL', ROLLED, process)
    gone[#gone + 1] = process
  end
end
local rolled = ARGV[3] == '1' and redis.call('HGETALL', ROLLED) or {}
-- One string each: a client reads thousands of them slowly.
return {
  now, redis.call('HGETALL', COLUMNS), redis.call('HGET', TAKEN, '') or '',
  cmsgpack.pack(redis.call('HGETALL', TAKEN)), cmsgpack.pack(rolled), cmsgpack.pack(gone),
}
