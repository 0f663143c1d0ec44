//! A real Chromium, driven over its DevTools pipe: no driver, no library in between.
//!
//! In:    the `chromium` of the system. Out: pages that can be looked at, typed into and photographed.
//! Never: sleeps and hopes: it asks the page until the answer is yes, with a generous limit.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};

use crate::common::{PATIENCE, TempDir};

/// A browser with one page.
pub struct Browser {
    child: Child,
    pipe: ChildStdin,
    messages: Receiver<Value>,
    next_id: u64,
    session: String,
    /// What the page told since it was opened: requests, errors, refused content.
    pub events: VecDeque<Value>,
    _profile: TempDir,
}

impl Browser {
    pub fn start() -> Self {
        let profile = TempDir::new();
        // Chromium reads commands from descriptor 3 and answers on 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null", "chromium"])
            .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"])
            .args([
                "--no-first-run",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--hide-scrollbars",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromium is needed: scripts/install-test-tools installs it");
        let (pipe, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (tell, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                if tell.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            pipe,
            messages,
            next_id: 0,
            session: String::new(),
            events: VecDeque::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", target)["sessionId"].as_str().unwrap().into();
        for domain in ["Page", "Runtime", "Network", "Log", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1280, 900);
        browser
    }

    /// Asks the browser for something.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.next_id += 1;
        let id = self.next_id;
        self.send(id, method, &params);
        loop {
            let message =
                self.receive().unwrap_or_else(|| panic!("no answer to {method}: is chromium installed?"));
            if message["id"] == id {
                return match &message["error"] {
                    Value::Null => Ok(message["result"].clone()),
                    error => Err(error.clone()),
                };
            }
        }
    }

    fn send(&mut self, id: u64, method: &str, params: &Value) {
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.pipe.write_all(format!("{message}\0").as_bytes()).unwrap();
    }

    /// The next message; what is not an answer is remembered.
    fn receive(&mut self) -> Option<Value> {
        let message = self.messages.recv_timeout(PATIENCE).ok()?;
        if message["id"].is_null() {
            self.events.push_back(message.clone());
        }
        Some(message)
    }

    pub fn size(&mut self, width: u32, height: u32) {
        let mobile = width < 600;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    pub fn dark(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        self.eventually(
            "the page is loaded",
            "document.readyState === 'complete' && location.href !== 'about:blank'",
        );
    }

    /// What an expression is in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", evaluation(expression));
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Asks until an expression is true.
    pub fn eventually(&mut self, what: &str, expression: &str) {
        let start = Instant::now();
        // While a page is being left there is nothing to ask, and nobody who answers.
        let asked = format!("(() => {{ try {{ return ({expression}); }} catch {{ return false; }} }})()");
        let is_true = |answer: Value| answer["result"]["value"] == true;
        while !self.try_call("Runtime.evaluate", evaluation(&asked)).is_ok_and(is_true) {
            if start.elapsed() > PATIENCE {
                self.screenshot("failed");
                let text = self.eval("document.body.innerText");
                panic!(
                    "waited in vain: {what}: {expression}\n{}\n{:?}",
                    text.as_str().unwrap_or(""),
                    self.complaints()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses the mouse where an element is; again, if the page moved under it meanwhile.
    pub fn click(&mut self, selector: &str) {
        let start = Instant::now();
        loop {
            self.eventually(selector, &format!("document.querySelector({selector:?}) !== null"));
            let place = self.eval(&format!(
                "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'center'}}); \
                 window.hit = false; e.addEventListener('click', () => {{ window.hit = true; }}, {{once: true, capture: true}}); \
                 const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
            ));
            for kind in ["mousePressed", "mouseReleased"] {
                let event =
                    json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
                self.call("Input.dispatchMouseEvent", event);
            }
            if self.eval("window.hit") == true {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{selector} can't be hit");
        }
    }

    /// Puts the pointer over the middle of an element.
    pub fn hover(&mut self, selector: &str) {
        let place = self.eval(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        self.call("Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": place[0], "y": place[1] }));
    }

    /// Types into whatever has the focus, letter by letter.
    pub fn write(&mut self, text: &str) {
        for letter in text.chars() {
            self.call("Input.insertText", json!({ "text": letter.to_string() }));
        }
    }

    /// Presses a key that writes nothing, or one letter.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            "ArrowLeft" => 37,
            _ => 0,
        };
        let text = match key {
            "Enter" => "\r",
            _ if key.len() == 1 => key,
            _ => "",
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// What is shown, in light, in dark, and on a phone.
    pub fn look(&mut self, name: &str) {
        self.screenshot(name);
        self.dark(true);
        self.screenshot(&format!("{name}-dark"));
        self.size(360, 740);
        self.screenshot(&format!("{name}-phone"));
        self.size(1280, 900);
        self.dark(false);
    }

    /// Kept below the target folder, for people.
    pub fn screenshot(&mut self, name: &str) -> PathBuf {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("{name}.png"));
        let bytes = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        assert!(bytes.len() > 1000);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Where the page asked for something.
    pub fn requested(&self) -> Vec<String> {
        let requests = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        requests.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_string()).collect()
    }

    /// Exceptions, and content that the policy refused.
    pub fn complaints(&self) -> Vec<String> {
        let bad = |event: &&Value| {
            event["method"] == "Runtime.exceptionThrown"
                || (event["method"] == "Log.entryAdded" && event["params"]["entry"]["source"] == "security")
        };
        self.events.iter().filter(bad).map(|event| event["params"].to_string()).collect()
    }

    /// What `axe-core` finds wrong for people who don't see, don't hear or don't use a mouse.
    pub fn barriers(&mut self) -> Vec<String> {
        self.eval(axe());
        let found = self.eval(
            "axe.run().then((found) => found.violations.flatMap(({ id, nodes }) => \
             nodes.map(({ html, failureSummary }) => `${id}: ${html}: ${failureSummary}`)))",
        );
        found.as_array().unwrap().iter().map(ToString::to_string).collect()
    }

    /// Controls without a name that a screen reader could say.
    pub fn nameless(&mut self) -> Vec<String> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().unwrap().iter().filter(|node| {
            let controls = ["button", "textbox", "searchbox", "combobox", "link", "image", "dialog"];
            let role = node["role"]["value"].as_str().unwrap_or("");
            node["ignored"] == false
                && controls.contains(&role)
                && node["name"]["value"].as_str().unwrap_or("").is_empty()
        });
        nodes.map(ToString::to_string).collect()
    }
}

/// The text of `axe-core`, which scripts/install-test-tools puts beside the build.
fn axe() -> &'static str {
    static AXE: OnceLock<String> = OnceLock::new();
    AXE.get_or_init(|| {
        let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let installed = Command::new(root.join("scripts/install-test-tools")).arg("node").status();
        assert!(installed.is_ok_and(|status| status.success()), "scripts/install-test-tools node failed");
        let text =
            fs::read_to_string(root.join("target/node-tools/node_modules/axe-core/axe.min.js")).unwrap();
        // The last value would be sent back.
        format!("{text}; true")
    })
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Closing the pipe would do, but a hung browser must go too.
        self.session.clear();
        self.next_id += 1;
        let close = format!("{}\0", json!({ "id": self.next_id, "method": "Browser.close" }));
        self.pipe.write_all(close.as_bytes()).ok();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if self.child.try_wait().is_ok_and(|exited| exited.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn evaluation(expression: &str) -> Value {
    json!({ "expression": expression, "awaitPromise": true, "returnByValue": true })
}
