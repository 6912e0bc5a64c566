//! How the figures were made, in words.

use super::Source;
use crate::{
    analysis::bootstrap::{FEWEST, RESAMPLES},
    report::html::{said, tag},
};

/// The section.
pub(super) fn section(source: &Source<'_>) -> String {
    let resamples = source.judgement.resamples.max(RESAMPLES);
    let items = [
        "Every subject was measured in the same campaign, one after the other in a shuffled order, each repetition in fresh network namespaces: what the machine does to one, it does to all.".to_owned(),
        "Only repetitions count in which the emulator kept its promises. The others were repeated, and are counted above.".to_owned(),
        "A transfer that failed has no times; it counts in the share of transfers that failed. Its absence may flatter a subject that fails often: read both.".to_owned(),
        format!("Medians and percentiles are of type 7 (Hyndman and Fan). Intervals are 95 % percentile intervals of {RESAMPLES} bootstrap resamples; whole repetitions are drawn, for transfers of one repetition share a world. With fewer than {FEWEST} repetitions no such statement is possible, and none is made."),
        format!("A ratio is that of two medians over the repetitions that both subjects have. Its interval draws the same repetitions for both ({resamples} resamples), so that a mood of the machine that hit both does not widen it."),
        "Better and worse are claimed only if that could hardly be chance: p ≤ 0.05, two-sided, after Holm's correction for all judged comparisons of this page. A probability is never taken for smaller than an exact test of so few repetitions could show (sign test; rank test where no values overlap). “No difference seen” does not mean that there is none.".to_owned(),
        "Time to first and last byte begin with the connection to the way in (SOCKS, HTTP proxy, or the target itself) and include it. Goodput is payload over that time; for transfers that the clock ended, over the payload's own time.".to_owned(),
        "Processor time is that of the named process while the workloads ran, for each 10⁹ octets of payload moved.".to_owned(),
        "Resampling begins at the campaign's seed: the same results give the same page.".to_owned(),
    ];
    let list: String = items.iter().map(|item| said("li", item)).collect();
    tag("ul class=\"method\"", &list)
}
