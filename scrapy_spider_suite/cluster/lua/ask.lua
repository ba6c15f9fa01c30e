-- Leaves a call for some agents: for all of them, or for none if one has too many already.
-- KEYS: the list of each. ARGV: how many may wait there; milliseconds for which they are kept;
-- 1 if it is to come before the others; then the call for each.
for number, key in ipairs(KEYS) do
  if redis.call('LLEN', key) >= tonumber(ARGV[1]) then return {number} end
end
for number, key in ipairs(KEYS) do
  redis.call(ARGV[3] == '1' and 'LPUSH' or 'RPUSH', key, ARGV[3 + number])
  redis.call('PEXPIRE', key, ARGV[2])
end
return {0}
