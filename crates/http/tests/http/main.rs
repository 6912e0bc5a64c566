//! Two ends of a connection, of every version of HTTP; two ends of HTTP/3 over loopback; and ends that break its rules.

mod breaches;
mod flows;
mod forwarding;
mod pair;
mod streams;
mod tuning;
mod versions;
