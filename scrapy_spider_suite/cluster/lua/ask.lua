-- Puts a call into the lists of some agents: into all, or into none if one list is full.
-- KEYS: the lists. ARGV: most calls of a list; milliseconds for which they are kept;
-- 1: the call goes first; then the call for each agent.
for number, key in ipairs(KEYS) do
  if redis.call('LLEN', key) >= tonumber(ARGV[1]) then return {number} end
end
for number, key in ipairs(KEYS) do
  redis.call(ARGV[3] == '1' and 'LPUSH' or 'RPUSH', key, ARGV[3 + number])
  redis.call('PEXPIRE', key, ARGV[2])
end
return {0}
