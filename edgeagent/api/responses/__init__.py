"""OpenAI's Responses over HTTP and WebSocket (`socket`): turns, items, events, stored responses, compaction."""
