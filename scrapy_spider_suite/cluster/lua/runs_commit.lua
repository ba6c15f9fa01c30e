-- An owner has worked on its partitions: the links that it took go, runs come, and its manifest is
-- another one, in one step. a: name, incarnation, parts: partition, unit (the first of it), number (of this
-- commit), token (of this call), manifest, open (URLs that are in no run yet), taken (places), runs
-- (queue, slot, run), used, unused (blobs that the manifest names from now on, or no longer).
-- Returns for each part whether it is done; a part that comes again is done already. 'fenced': none.
local text = redis.call('HGET', MEMBERS, a.name)
local row = text and parsed(text, MEMBERS) or nil
if not row or row.incarnation ~= a.incarnation or not counted(row) or over(row) then
  return {'fenced'}
end

local function holds(unit)
  local high, low = string.byte(redis.call('GETRANGE', UNITS_HELD, 2 * unit, 2 * unit + 1), 1, 2)
  return high ~= nil and 256 * high + low == row.number
end

local function commit(part)
  local packed = redis.call('HGET', MANIFESTS, part.partition)
  local known = packed and cmsgpack.unpack(packed) or {0, '', '', 0}
  if known[1] == part.number and known[2] == part.token then return 1 end
  if known[1] ~= part.number - 1 or not holds(part.unit) then return 0 end
  for _, each in ipairs(part.runs) do
    if not weights[each[1]] then return 0 end
  end
  for _ = 1, part.taken do
    use_blob(redis.call('LPOP', inputs_of(part.partition)), -1)
    note('inputs', -1)
  end
  if redis.call('EXISTS', inputs_of(part.partition)) == 0 then
    redis.call('SREM', INPUTS, part.partition)
  end
  for _, each in ipairs(part.runs) do
    push(each[1], each[2], each[3])
    count(each[1], each[3], nil, 'queued')
    use_run(each[3], 1)
  end
  for _, blob in ipairs(part.used) do use_blob(blob, 1) end
  for _, blob in ipairs(part.unused) do use_blob(blob, -1) end
  note('open', part.open - known[4])
  redis.call('HSET', MANIFESTS, part.partition,
    cmsgpack.pack({part.number, part.token, part.manifest, part.open}))
  return 1
end

local done = {}
for i, part in ipairs(a.parts) do done[i] = commit(part) end
save_counts()
return {'ok', done}
