-- Returns the time, the columns by their ids, and the pulses by agent in each of the other keys.
local found = {}
for i = 2, #KEYS do found[#found + 1] = cmsgpack.pack(redis.call('HGETALL', KEYS[i])) end
return {clock(), redis.call('HGETALL', KEYS[1]), found}
