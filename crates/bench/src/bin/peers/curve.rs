//! How cost grows, as a picture: one column for each thing that grows, rate above and p99 below.
//!
//! In:    `Curve`s. Out: one SVG without scripts, fonts or anything else from elsewhere.
//! Never: a linear axis: what matters is the slope over powers of ten.

use std::fmt::Write as _;

const PANEL_W: f64 = 210.0;
const PANEL_H: f64 = 150.0;
const LEFT: f64 = 62.0;
const TOP: f64 = 56.0;
const GAP_X: f64 = 66.0;
const GAP_Y: f64 = 56.0;
const COLOURS: [(&str, &str); 3] = [("Leasehold", "#0b6e4f"), ("etcd", "#c8553d"), ("ZooKeeper", "#3d5a98")];

/// One point: how much there was, and what it did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// Connections, waiters, claims or nodes.
    pub(crate) x: f64,
    /// A second.
    pub(crate) rate: f64,
    /// In milliseconds.
    pub(crate) p99_ms: f64,
}

/// One column of the picture.
pub(crate) struct Column {
    /// What grows.
    pub(crate) title: &'static str,
    /// What is counted.
    pub(crate) unit: &'static str,
    /// A system's name and its points.
    pub(crate) lines: Vec<(&'static str, Vec<Point>)>,
}

/// The picture.
pub(crate) fn svg(columns: &[Column]) -> String {
    let width = LEFT + columns.len() as f64 * (PANEL_W + GAP_X);
    let height = TOP + 2.0 * (PANEL_H + GAP_Y);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"11\" fill=\"#333\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (at, (name, colour)) in COLOURS.iter().enumerate() {
        let x = LEFT + at as f64 * 110.0;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"10\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"16\">{name}</text>",
            x + 20.0
        );
    }
    for (at, column) in columns.iter().enumerate() {
        let x = LEFT + at as f64 * (PANEL_W + GAP_X);
        panel(&mut out, (x, TOP), &format!("{} a second", column.unit), column, |point| point.rate);
        let y = TOP + PANEL_H + GAP_Y;
        panel(&mut out, (x, y), &format!("p99 of {}, ms", column.unit), column, |point| point.p99_ms);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, (left, top): (f64, f64), title: &str, column: &Column, y: impl Fn(&Point) -> f64) {
    let points = || column.lines.iter().flat_map(|line| &line.1).filter(|point| y(point) > 0.0);
    let x_axis = Axis::over(points().map(|point| point.x));
    let y_axis = Axis::over(points().map(&y));
    let _ = writeln!(out, "<text x=\"{left}\" y=\"{}\" font-weight=\"600\">{title}</text>", top - 8.0);
    for tick in y_axis.ticks() {
        let at = top + PANEL_H * (1.0 - y_axis.place(tick));
        let _ = writeln!(
            out,
            "<path d=\"M{left} {at:.1}h{PANEL_W}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            at + 4.0,
            short(tick)
        );
    }
    let mut shown: Vec<f64> = points().map(|point| point.x).collect();
    shown.sort_by(f64::total_cmp);
    shown.dedup();
    for x in shown {
        let at = left + PANEL_W * x_axis.place(x);
        let (below, text) = (top + PANEL_H + 14.0, short(x));
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>");
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#777\">{}</text>",
        left + PANEL_W / 2.0,
        top + PANEL_H + 28.0,
        column.title
    );
    for (name, line) in &column.lines {
        let colour = COLOURS.iter().find(|known| known.0 == *name).map_or("#777", |known| known.1);
        let mut path = String::new();
        for point in line.iter().filter(|point| y(point) > 0.0) {
            let at_x = left + PANEL_W * x_axis.place(point.x);
            let at_y = top + PANEL_H * (1.0 - y_axis.place(y(point)));
            let _ = write!(path, "{}{at_x:.1} {at_y:.1}", if path.is_empty() { "M" } else { "L" });
            let _ = writeln!(out, "<circle cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let _ = writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    }
}

/// A logarithmic axis over whole powers of ten.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::MAX, f64::MIN);
        for value in values.filter(|value| *value > 0.0) {
            low = low.min(value.log10().floor());
            high = high.max(value.log10().ceil());
        }
        if low > high { Self { low: 0.0, high: 1.0 } } else { Self { low, high: high.max(low + 1.0) } }
    }

    fn place(&self, value: f64) -> f64 {
        (value.log10() - self.low) / (self.high - self.low)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|power| 10_f64.powi(power))
    }
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_every_point_inside_its_panel() {
        let line = [(1.0, 10.0), (64.0, 22_000.0)].map(|(x, rate)| Point { x, rate, p99_ms: 1.5 });
        let lines = vec![("Leasehold", line.to_vec())];
        let picture = svg(&[Column { title: "connections", unit: "cycles", lines }]);
        assert_eq!(picture.matches("<circle").count(), 4);
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n") && !picture.contains("NaN"));
        let axis = Axis::over([3.0, 500.0].into_iter());
        assert_eq!((axis.place(1.0), axis.place(1000.0)), (0.0, 1.0));
    }
}
