"""A trace of the browser, which has the processor time of each task of a page."""

import json

import websocket

import cluster

# The tasks of all threads, and the marks of pages.
CATEGORIES = ["disabled-by-default-devtools.timeline", "blink.user_timing"]
MARK = "traced page"
ANSWERS_WITHIN = 60  # seconds


class Trace:
    """Records from the start of its block on."""

    def __init__(self, driver):
        self.driver = driver
        address = driver.capabilities["goog:chromeOptions"]["debuggerAddress"]
        self.url = cluster.request(f"http://{address}", "GET", "/json/version")["webSocketDebuggerUrl"]

    def __enter__(self):
        # Chromium refuses connections with an origin.
        self.socket = websocket.create_connection(self.url, timeout=ANSWERS_WITHIN, suppress_origin=True)
        self.send(1, "Tracing.start", {"traceConfig": {"includedCategories": CATEGORIES, "excludedCategories": ["*"]}})
        answer = self.receive()
        assert "error" not in answer, answer
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, number, method, params):
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))

    def receive(self):
        return json.loads(self.socket.recv())

    def longest_task(self):
        """Ends the trace. Returns the longest processor time in ms of a task in the main thread of the page."""
        self.driver.execute_script("performance.mark(arguments[0])", MARK)
        self.send(2, "Tracing.end", {})
        events = []
        while (message := self.receive()).get("method") != "Tracing.tracingComplete":
            if message.get("method") == "Tracing.dataCollected":
                events += message["params"]["value"]
        # A full buffer drops events.
        assert not message["params"].get("dataLossOccurred"), message
        pages = {event["pid"] for event in events if event["name"] == MARK}
        main = {(event["pid"], event["tid"]) for event in events if event.get("args", {}).get("name") == "CrRendererMain"}
        tasks = [event for event in events if event["name"] == "RunTask" and (event["pid"], event["tid"]) in main]
        return max(task.get("tdur", 0) for task in tasks if task["pid"] in pages) / 1_000
