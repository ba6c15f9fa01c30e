-- Reads rows. KEYS: columns, keys of rows. ARGV: for each key of rows its places, with blanks between
-- them; '' for all. Returns the time, the columns by their ids, and a list of rows for each key.
local found = {}
for i = 2, #KEYS do
  local rows = {}
  if ARGV[i - 1] == '' then
    rows = redis.call('HVALS', KEYS[i])
  else
    local places = {}
    for place in string.gmatch(ARGV[i - 1], '%S+') do places[#places + 1] = place end
    for from = 1, #places, 1000 do
      local part = redis.call('HMGET', KEYS[i], unpack(places, from, math.min(from + 999, #places)))
      for _, row in ipairs(part) do if row then rows[#rows + 1] = row end end
    end
  end
  found[#found + 1] = rows
end
return {clock(), redis.call('HGETALL', KEYS[1]), found}
