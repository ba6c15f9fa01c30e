-- The manifests of some partitions. a: partitions (64 at most). Returns for each the number of its last
-- commit, and the manifest; '' before the first.
local found = {}
for i, partition in ipairs(a.partitions) do
  local packed = redis.call('HGET', MANIFESTS, partition)
  local known = packed and cmsgpack.unpack(packed) or {0, '', '', 0}
  found[i] = {known[1], known[3]}
end
return {'ok', found}
