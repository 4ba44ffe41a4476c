"""OpenAI's Responses over HTTP: turns, items, events, stored responses, compaction."""
