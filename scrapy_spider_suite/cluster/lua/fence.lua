-- KEYS[1]: the members. ARGV[1], ARGV[2]: the agent whose process asks, and its incarnation.
-- What another process has its place for, or one whose lease has ended, must not write: others may
-- never see what lies on its disk. Then scripts answer with FENCED and do nothing.
local FENCED = -1

local function fenced()
  local text = redis.pcall('HGET', KEYS[1], ARGV[1])
  if not text then return true end
  local row = parsed(text, KEYS[1])
  return row.incarnation ~= ARGV[2] or not counted(row) or over(row)
end
