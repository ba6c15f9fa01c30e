-- Puts a message into an inbox, unless it lies there. See fence.lua.
-- KEYS[2]: the inbox. ARGV: its most entries; the message; its earlier entry, or ''.
-- Returns the message's entry; nothing if the inbox is full.
if fenced() then return FENCED end
local at = ARGV[5]
if at ~= '' and #redis.call('XRANGE', KEYS[2], at, at) > 0 then return at end
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[3]) then return false end
return redis.call('XADD', KEYS[2], '*', 'message', ARGV[4])
