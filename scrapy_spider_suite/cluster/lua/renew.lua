-- A heartbeat: renews the lease and stores the agent's report. ARGV[2]: its facts.
local row, refusal = own()
if refusal then return answer(refusal) end

-- Whether the crawl is over, by Mattern's four counters (Distributed Computing 2, 1987, 161-175): in
-- two rounds in a row all agents were idle, as many rows were received as sent, and no activity came
-- between. An agent that posts for a round has heard of it, so its report is from within.
local function over_now()
  local sent, received, activity = 0, 0, 0
  for _, each in pairs(everyone()) do
    if counted(each) then
      if not (each.idle and each.round == crawl.round and each.posted == crawl.epoch) then
        return false
      end
      sent, received = sent + each.sent, received + each.received
      activity = activity + each.activity
    end
  end
  local sums = sent == received and table.concat({sent, received, activity}, ' ') or ''
  local again = sums ~= '' and sums == crawl.sums
  crawl.round, crawl.sums = crawl.round + 1, sums
  if again and all_held() then crawl.ended = true end
  return true
end

row.heard = now
if row.state ~= 'removed' then row.ends = a.grace > 0 and now + a.grace or 0 end
row.idle, row.sent, row.received, row.activity = a.idle, a.sent, a.received, a.activity
row.round, row.posted = a.round, a.epoch
put(row)
redis.call('HSET', FACTS, a.name, ARGV[2])
if not a.idle and crawl.sums ~= '' then
  crawl.sums = ''
  save()
elseif a.idle and not crawl.ended and over_now() then
  save()
end
-- An agent that came after the end, and has work, opens the crawl again if no other agent is about to
-- close. An agent that saw the end closes; its next start does new work.
if crawl.ended and row.late and a.left and not closing(row.name, a.silence) then
  crawl.ended, crawl.sums = false, ''
  for _, each in pairs(everyone()) do
    if each.late then
      each.late = false
      put(each)
    end
  end
  save()
end
return answer('ok', {ends = row.ends, state = row.state})
