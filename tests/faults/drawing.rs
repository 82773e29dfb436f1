//! Draws the history of one lease: a row per client, the fault windows, and the holders by the log at the top.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::fault_window::FaultWindow;
use super::judge::LeaseHistory;
use super::judge::history::Ended;
use super::recorder::{now, word};

const WIDTH: f64 = 1_600.0;
const LEFT: f64 = 120.0;
const TOP: f64 = 60.0;
const ROW: f64 = 16.0;

/// Draws a lease as an SVG image.
pub fn draw(name: &str, history: &LeaseHistory, windows: &[FaultWindow]) -> String {
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for operation in history.operations {
        let row = rows.len();
        rows.entry(client(operation.by.as_str())).or_insert(row);
    }
    let times = history.operations.iter().flat_map(|operation| [Some(operation.invoked), operation.returned]);
    let times: Vec<Duration> = times.flatten().chain(history.transitions.iter().map(|seen| seen.at)).collect();
    let from = times.iter().min().copied().unwrap_or_default();
    let until = times.iter().max().copied().unwrap_or_default().max(from + Duration::from_millis(1));
    let scale = Scale { from, seconds: until.saturating_sub(from).as_secs_f64() };
    let height = TOP + ROW * (rows.len() + 2) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + WIDTH + 20.0
    );
    let seconds = scale.seconds;
    text(&mut svg, 4.0, 14.0, &format!("{name}: {} operations in {seconds:.3} s", history.operations.len()));
    for window in windows.iter().filter(|window| window.overlaps(from, until)) {
        let (start, end) = (window.from.max(from), window.until.unwrap_or_else(now).min(until));
        bar(&mut svg, &scale, (start, end), (TOP - 32.0, height), "#ffd9a0", 0.5, window.kind.as_str());
        text(&mut svg, scale.x(start), TOP - 34.0, window.kind.as_str());
    }
    draw_log(&mut svg, &scale, history, until);
    for operation in history.operations {
        let y = TOP + ROW * (rows[client(operation.by.as_str())] + 1) as f64;
        let colour = match operation.ended {
            Ended::Held(..) | Ended::Changed(true) | Ended::Updated { .. } => "#2a7d2a",
            Ended::Saw(..) | Ended::Showed => "#3a6ea5",
            Ended::Changed(false) => "#888888",
            Ended::Refused(_) => "#c9a227",
            Ended::Unknown => "#c0392b",
        };
        // An operation of unknown outcome may take effect at any later time.
        let end = operation.returned.filter(|_| operation.ended != Ended::Unknown).unwrap_or(until);
        let label = format!("{} {} {:?}", operation.by, word(&operation.what), operation.ended);
        bar(&mut svg, &scale, (operation.invoked, end), (y, y + ROW - 6.0), colour, 0.8, &label);
    }
    for (client, row) in rows {
        text(&mut svg, 4.0, TOP + ROW * (row + 1) as f64 + 9.0, client);
    }
    svg + "</svg>\n"
}

/// Draws the holders by the log, from the time at which a watcher first saw each grant.
fn draw_log(svg: &mut String, scale: &Scale, history: &LeaseHistory, until: Duration) {
    text(svg, 4.0, TOP - 8.0, "log");
    for (place, seen) in history.transitions.iter().enumerate() {
        if !seen.is_grant() {
            continue;
        }
        let end = history.transitions[place + 1..].iter().find(|later| later.token == seen.token);
        let how = end.map_or("still held", |end| end.event.as_str());
        let label = format!("{} at {}, {how}", seen.holder, seen.index);
        let end = end.map_or(until, |end| end.at);
        bar(svg, scale, (seen.at, end), (TOP - 18.0, TOP - 6.0), "#7d3c98", 0.7, &label);
    }
}

/// The client of a holder id. The number behind the dot counts its claims.
fn client(holder: &str) -> &str {
    holder.split('.').next().unwrap_or(holder)
}

struct Scale {
    from: Duration,
    /// The width of the drawing in seconds.
    seconds: f64,
}

impl Scale {
    fn x(&self, at: Duration) -> f64 {
        LEFT + WIDTH * at.saturating_sub(self.from).as_secs_f64() / self.seconds
    }
}

fn bar(
    svg: &mut String,
    scale: &Scale,
    times: (Duration, Duration),
    ys: (f64, f64),
    colour: &str,
    alpha: f64,
    label: &str,
) {
    let (x, y, height) = (scale.x(times.0), ys.0, ys.1 - ys.0);
    let width = (scale.x(times.1) - x).max(1.5);
    let label = escape(label);
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\" \
         fill-opacity=\"{alpha}\"><title>{label}</title></rect>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::kind::Kind;
    use super::*;
    use crate::judge::samples::{acquire, acquired, did, expired, granted, history};

    #[test]
    fn drawing_shows_every_operation_grant_and_fault() {
        let unknown = did("c2.7", acquire(), (20, 30), Ended::Unknown);
        let asked = [acquired("c1.1", (0, 10), 5), unknown, acquired("<&>", (50, 60), 9)];
        let log = [granted(5, "c1.1", 5), expired(40, "c1.1", 5, 8), granted(55, "<&>", 9)];
        let from = Duration::from_millis(10);
        let windows = [FaultWindow { kind: Kind::Loss, from, until: Some(Duration::from_millis(35)) }];
        let svg = draw("job", &history(&asked, &log), &windows);
        // The background, three operations, two grants and a fault.
        assert_eq!(svg.matches("<rect").count(), 1 + 3 + 2 + 1, "{svg}");
        assert!(svg.contains("c1.1 at 5, expired") && svg.contains(">loss<") && svg.contains("&lt;&amp;&gt;"), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
