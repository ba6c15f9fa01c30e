-- KEYS: columns, pulses. Returns the columns by their ids, and the pulses by process.
return {redis.call('HGETALL', KEYS[1]), cmsgpack.pack(redis.call('HGETALL', KEYS[2]))}
