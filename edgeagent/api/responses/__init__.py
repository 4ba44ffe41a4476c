"""OpenAI's Responses API over HTTP and WebSocket: turns, items, events, stored responses, compaction."""
