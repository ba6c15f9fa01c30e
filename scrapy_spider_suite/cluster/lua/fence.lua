-- KEYS[1]: the members. ARGV[1], ARGV[2]: the agent of the calling process, its incarnation.
-- A process that was replaced, or whose lease has ended, must not write: its disk may be lost to
-- the others. Then scripts return FENCED and change nothing.
local FENCED = -1

local function fenced()
  local text = redis.pcall('HGET', KEYS[1], ARGV[1])
  if not text then return true end
  local row = parsed(text, KEYS[1])
  return row.incarnation ~= ARGV[2] or not counted(row) or over(row)
end
