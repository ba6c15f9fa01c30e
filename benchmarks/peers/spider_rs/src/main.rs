//! A broad crawl with spider: peer PROXY CONCURRENCY SEED
//!
//! It resolves names itself, so it is given the web as a proxy: the web answers by the host's name.
//! All domains are external ones that it may follow, as its documentation says.

use spider::tokio;
use spider::website::Website;

#[tokio::main]
async fn main() {
    let given: Vec<String> = std::env::args().collect();
    let concurrency: usize = given[2].parse().expect("a number");
    let mut website = Website::new(&given[3]);
    website
        .with_user_agent(Some("suite-benchmarks/1.0 (+https://benchmarks.example/)"))
        .with_respect_robots_txt(false)
        .with_subdomains(true)
        .with_external_domains(Some(vec!["*".to_string()].into_iter()))
        .with_concurrency_limit(Some(concurrency))
        .with_proxies(Some(vec![given[1].clone()]));
    website.crawl().await;
}
