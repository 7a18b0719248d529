-- Makes wrk send the bodies of a file, line by line and repeatedly: BODIES=file wrk -s post.lua URL
-- A line may begin with the path of its body and a space.
local requests = {}
for line in io.lines(os.getenv("BODIES")) do
  local path, body = line:match("^(/%S*) (.*)$")
  requests[#requests + 1] = { path = path, body = body or line }
end

local headers = wrk.headers
headers["Content-Type"] = "application/json"

local index = 0
request = function()
  index = index % #requests + 1
  return wrk.format("POST", requests[index].path, headers, requests[index].body)
end

done = function(summary, latency)
  local failed = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  io.write(string.format("RESULT %d %d %.3f %.3f %d\n", summary.requests, summary.duration,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, failed))
end
