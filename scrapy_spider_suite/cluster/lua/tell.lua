-- Tells a sender which of its messages are kept. See fence.lua.
-- KEYS[2]: its receipts. ARGV: most entries, older ones go; the receipts.
if fenced() then return FENCED end
return redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'receipts', ARGV[4])
