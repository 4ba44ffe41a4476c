"""A voice assistant on one machine: pocketsphinx hears, edgeagent answers, espeak-ng speaks.

`python -m examples.voice` uses the microphone and the loudspeaker; docs/guides/voice-assistant.md explains each step.
"""
