module benchmarks.example/colly

go 1.23

require github.com/gocolly/colly/v2 v2.3.0
