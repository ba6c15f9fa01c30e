// A broad crawl with colly: main NAMES CONCURRENCY SEEDS
//
// Set up as its documentation advises for many sites: asynchronous, a limit rule for all domains,
// a transport whose idle connections are kept.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gocolly/colly/v2"
)

func main() {
	names := map[string]string{}
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = json.Unmarshal(text, &names)
	}
	concurrency, number := strconv.Atoi(os.Args[2])
	seeds, list := os.ReadFile(os.Args[3])
	for _, each := range []error{err, number, list} {
		if each != nil {
			log.Fatal(each)
		}
	}
	dialer := &net.Dialer{Timeout: 15 * time.Second}
	c := colly.NewCollector(
		colly.Async(true),
		colly.IgnoreRobotsTxt(),
		colly.UserAgent("suite-benchmarks/1.0 (+https://benchmarks.example/)"),
	)
	c.WithTransport(&http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return dialer.DialContext(ctx, network, net.JoinHostPort(names[host], port))
		},
		MaxIdleConns:        10 * concurrency,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     15 * time.Second,
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
	})
	c.DisableCookies()
	if err := c.Limit(&colly.LimitRule{DomainGlob: "*", Parallelism: concurrency}); err != nil {
		log.Fatal(err)
	}
	c.OnHTML("a[href]", func(e *colly.HTMLElement) {
		_ = e.Request.Visit(e.Attr("href"))
	})
	for _, seed := range strings.Fields(string(seeds)) {
		_ = c.Visit(seed)
	}
	c.Wait()
}
