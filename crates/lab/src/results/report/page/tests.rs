use super::*;
use crate::results::report::{
    compare::judge,
    example::{Example, data},
    figures::figures,
    recognise::answers,
};

fn render(data: &Data, baseline: Option<usize>) -> String {
    let judgement = judge(data, baseline);
    let figures = figures(data, &judgement);
    let unread = [];
    let answers = answers(data);
    page(&PageInput {
        answers: &answers,
        data,
        judgement: &judgement,
        figures: &figures,
        unread: &unread,
    })
}

fn render_example(example: &Example) -> String {
    let data = data(example);
    let baseline = data.subject("native");
    render(&data, baseline)
}

/// Every tag that is opened is closed, in order.
fn check(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in page.split('<').skip(1) {
        let inside = part.split('>').next().unwrap();
        let name = inside.split_whitespace().next().unwrap_or("");
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "near <{part}"),
            None if inside.ends_with('/') || ["!doctype", "meta"].contains(&name) => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn a_page_is_well_formed_and_takes_nothing_from_elsewhere() {
    let page = render_example(&Example::default());
    check(&page);
    for foreign in [
        "http://", "https://", "<script", "<link", "<img", "@import", "url(",
    ] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn a_subject_that_was_not_run_has_no_column() {
    let mut part = data(&Example::default());
    part.subjects.push("later".into());
    part.families.push("later".into());
    part.family.push(part.families.len() - 1);
    let page = render(&part, None);
    let verdict = page.split("id=\"paper\"").next().unwrap();
    assert!(verdict.contains("</i>tor</th>"));
    assert!(!verdict.contains("</i>later</th>"));
}

#[test]
fn what_an_observer_recognises_stands_beside_chance() {
    let page = render_example(&Example {
        hops: vec![1, 2, 3],
        watched: true,
        ..Example::default()
    });
    check(&page);
    let section = page.split("What an observer recognises</h2>").nth(1);
    let section = section.unwrap().split("</section>").next().unwrap();
    let tor = section.split("<tr>").find(|line| line.contains(">tor<"));
    let tor = tor.unwrap();
    assert!(
        tor.contains("100.0\u{202f}%") && tor.contains(">33.3\u{202f}%<"),
        "{tor}"
    );
    assert!(tor.contains(">better than chance<"), "{tor}");
    assert!(section.contains("rgba(0,114,178,0.55)\">10<"), "{section}");
    assert!(!page.contains("Packet pattern"), "features are in a file");
    let nobody = render_example(&Example::default());
    assert!(!nobody.contains("What an observer recognises"));
}

#[test]
fn the_verdict_comes_first_and_says_who_is_worse() {
    let page = render_example(&Example::default());
    let verdict = page.find("Who won").unwrap();
    assert!(verdict < page.find("May it be trusted?").unwrap());
    assert!(
        page.contains("▼ ×") && page.contains("worse</span>"),
        "no verdict on tor"
    );
    assert!(page.contains("★") || page.contains("☆"));
}

#[test]
fn names_from_files_are_text_and_nothing_else() {
    let page = render_example(&Example {
        broken: Some("tor"),
        ..Example::default()
    });
    assert!(page.contains("Downloads over &lt;one&gt; bottleneck &amp; several ways"));
    assert!(page.contains("relay1: &lt;address in use&gt;") && !page.contains("<address"));
    check(&page);
}

#[test]
fn a_subject_that_always_failed_is_shown_as_failed() {
    let page = render_example(&Example {
        broken: Some("tor"),
        ..Example::default()
    });
    assert!(page.contains("✕ failed") && page.contains("waiting for relay1"));
}

#[test]
fn how_long_programs_waited_for_a_processor_is_told_or_said_to_be_unknown() {
    let mut data = data(&Example::default());
    let page = render(&data, None);
    assert!(page.contains("<b>12.5 %</b> of the time programs waited"));
    assert!(page.contains("waited for a processor in more than 50.0 % of it"));
    assert!(!page.contains("/proc/pressure/cpu"));
    for attempt in &mut data.attempts {
        attempt.health.cpu_pressure = None;
    }
    let page = render(&data, None);
    assert!(page.contains("<b>– %</b> of the time programs waited"));
    assert!(page.contains("it is not known how long programs waited for a processor"));
}

#[test]
fn the_gate_is_told_with_its_share_of_late_packets() {
    let page = render_example(&Example::default());
    assert!(
        page.contains("when more than 1.00 % of the packets left the emulator more than 500 µs later than planned"),
        "{}",
        page.split("An attempt is refused").nth(1).unwrap_or_default()
    );
    assert!(page.contains("of the packets were late (largest)"));
    assert!(!page.contains("The validity gate was open"));
}

#[test]
fn figures_behind_an_open_gate_are_shown_as_no_measurement() {
    let mut data = data(&Example::default());
    data.campaign.gate.late_share = 1.0;
    let baseline = data.subject("native");
    let page = render(&data, baseline);
    check(&page);
    let verdict = page.find("The validity gate was open").unwrap();
    assert!(verdict < page.find("class=\"glance\"").unwrap());
    for claim in ["★", "☆", "▼", "▲", "missed", "below</span>", "best in"] {
        assert!(!page.contains(claim), "{claim}");
    }
    let goals = page.split("Beside what was asked").nth(2).unwrap();
    let goals = goals.split("</section>").next().unwrap();
    assert!(goals.contains(">not judged</span>"), "{goals}");
}

#[test]
fn a_matrix_is_told_case_by_case() {
    let example = Example {
        hops: vec![1, 2],
        rates: vec!["10Mbit", "50Mbit"],
        ..Example::default()
    };
    let page = render_example(&example);
    check(&page);
    assert!(page.contains("hops 1 · rate 10Mbit") && page.contains("hoplite-{hops}"));
    assert!(page.contains("▼ worse in all 4"), "tor is worse everywhere");
}

#[test]
fn one_repetition_makes_a_page_without_claims() {
    let page = render_example(&Example {
        repetitions: 1,
        ..Example::default()
    });
    check(&page);
    assert!(page.contains("too few to say") && !page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn an_empty_campaign_makes_a_page_that_says_so() {
    let page = render(&Data::default().with(Vec::new()), None);
    check(&page);
    assert!(page.contains("no repetition was accepted"));
}

#[test]
fn one_subject_alone_has_nothing_to_be_compared_with() {
    let mut data = data(&Example::default());
    data.groups
        .retain(|place, _| data.subjects[place.subject] == "native");
    let page = render(&data, Some(0));
    check(&page);
    assert!(page.contains("no case has figures of two subjects"));
}

#[test]
fn a_goal_says_in_how_many_cases_it_is_met() {
    let page = render_example(&Example {
        hops: vec![1, 2],
        ..Example::default()
    });
    check(&page);
    let goals = page.split("Beside what was asked").nth(2).unwrap();
    let goals = goals.split("</section>").next().unwrap();
    assert!(
        goals.contains("at most 1.10") && goals.contains("0 of 1"),
        "{goals}"
    );
    assert!(goals.contains(">missed</span>"), "{goals}");
    let paper = page.split("Beside the paper").nth(2).unwrap();
    let paper = paper.split("</section>").next().unwrap();
    assert!(!paper.contains("Hardly later"), "a goal is no paper's");
}

#[test]
fn the_papers_figure_stands_beside_ours() {
    let page = render_example(&Example {
        hops: vec![1, 2],
        ..Example::default()
    });
    let paper = page.split("Beside the paper").nth(2).unwrap();
    assert!(
        paper.contains("4.20 – 4.80") && paper.contains("below"),
        "no agreement told"
    );
    assert!(paper.contains("a statement: see the figures"));
}
