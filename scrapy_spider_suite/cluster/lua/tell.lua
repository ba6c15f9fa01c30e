-- Tells a sender what is kept of its messages. See fence.lua.
-- KEYS[2]: its receipts. ARGV: how many entries may lie there, older ones are forgotten; receipts.
if fenced() then return FENCED end
return redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'receipts', ARGV[4])
