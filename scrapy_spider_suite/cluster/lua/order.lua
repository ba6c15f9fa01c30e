-- Orders of an operator: 'remove' a member, 'release' units without a holder, 'forget' the crawl.
if not crawl then return answer('lost') end
if a.order == 'remove' then
  local row = member(a.target)
  if not row then return answer('unknown') end
  if counted(row) and row.ends == 0 and not a.dead then return answer('endless') end
  row.state = 'removed'
  if a.dead then row.ends = now end
  put(row)
  advance()
elseif a.order == 'release' then
  crawl.claims, crawl.open, crawl.founding = now, true, false
else
  for _, row in pairs(everyone()) do
    if alive(row, a.silence) then return answer('busy', {name = row.name}) end
  end
  local prefix = string.sub(CRAWL, 1, -#'crawl' - 1)
  for name in pairs(everyone()) do
    redis.call('DEL', prefix .. 'inbox:' .. name, prefix .. 'receipts:' .. name)  -- see redis_streams.py
    redis.call('DEL', prefix .. 'calls:' .. name)  -- see agent_calls.py; its other keys expire
    for _, tier in ipairs({'minute:', 'hour:', 'day:'}) do  -- see pulses.py
      redis.call('DEL', prefix .. 'series:' .. tier .. 'agent:' .. name)
    end
  end
  for _, row in pairs(everyone()) do redis.call('DEL', prefix .. 'address-news:' .. row.number) end
  redis.call('DEL', CRAWL, MEMBERS, FACTS, HOLDERS, prefix .. 'secret', prefix .. 'standing')
  for _, each in ipairs({
    'columns', 'roller', 'pulses', 'taken', 'rolled', 'second:', 'minute:', 'hour:', 'day:',
  }) do
    redis.call('DEL', prefix .. 'series:' .. each)
  end
  for phase = 1, 10000 do  -- SUITE_PHASES at most
    local series, name = prefix .. 'series:', ':phase:' .. phase
    redis.call('DEL', series .. 'minute' .. name, series .. 'hour' .. name, series .. 'day' .. name)
  end
  redis.call('DEL', prefix .. 'addresses', prefix .. 'address-eras')  -- see meet.lua
  crawl = nil
  return answer('ok')
end
save()
return answer('ok')
