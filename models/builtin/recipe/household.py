"""The household actions: for each the names its tool may carry, its parameters, and the ways to ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import pools
from .samples import Draw, Pool, lines, words

Slots = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter: the names it may carry, its JSON type, and its allowed values where they are few."""

    names: tuple[str, ...]
    type: str = "string"
    enum: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """One household action: tool names, descriptions, ways to ask for it, and how its success is told."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    slots: dict[str, Slot]
    asks: Pool
    amends: Pool | None
    done: str
    fill: Callable[[Draw], Slots]


def names(text: str) -> tuple[str, ...]:
    """List tool names; they are a closed class that both splits share, as an interface is."""
    return tuple(name.strip() for name in text.split(","))


def sentences(text: str) -> tuple[str, ...]:
    """List a tool's descriptions, a closed class too."""
    return tuple(line.strip() for line in text.splitlines())


def number(draw: Draw, low: int, high: int, what: str) -> int:
    """Draw a number; which numbers are held out differs for each `what`."""
    return int(draw.open(lambda source: f"{what}{source.randint(low, high)}")[len(what) :])


_CHORES = words("""call the doctor, water the plants, take out the rubbish, feed the cat, walk the dog, check the oven,
buy milk, do the laundry, pay the rent, empty the dishwasher, lock the door, take my pills, charge
the phone, close the windows, pick up the kids, send the letter, wash the car, iron the shirt, make
dinner, clean the kitchen""")


def room(draw: Draw) -> str:
    return f"{draw.open(pools.pseudo_word)} room" if draw.chance(0.15) else str(draw.pick(pools.ROOMS))


def item(draw: Draw) -> str:
    return draw.open(pools.pseudo_word) if draw.chance(0.35) else str(draw.pick(pools.ITEMS))


def chore(draw: Draw) -> str:
    roll = draw.random.random()
    if roll < 0.5:
        return str(draw.pick(_CHORES))
    if roll < 0.75:
        return f"{draw.any(('call', 'meet', 'write to', 'visit'))} {pools.name(draw)}"
    return f"{draw.any(('buy', 'get', 'pick up'))} {item(draw)}"


ACTIONS: dict[str, Action] = {
    "timer": Action(
        names("""set_timer, start_timer, create_timer, timer, new_timer, timer_set, add_timer, startTimer"""),
        sentences("Set a timer.\nStart a countdown.\nStart a timer in minutes.\nCreate a new timer."),
        {"n": Slot(("minutes", "minutes", "duration_minutes", "mins", "length"), "integer")},
        lines("""set a timer for {n} minutes
            start a timer for {n} minutes
            timer {n} minutes
            {n} minute timer please
            set a {n} minute timer
            start a {n} minute timer
            wake me in {n} minutes
            count down {n} minutes
            give me a timer of {n} minutes
            I need a timer for {n} minutes
            can you time {n} minutes?
            =please time {n} minutes for me
            ~please set a timer for {n} minutes
            ~can you start a timer for {n} minutes?
            ~timer for {n} minutes
            put {n} minutes on the timer
            let me know when {n} minutes are over
            tell me when {n} minutes have passed
            a timer for {n} minutes please
            my pasta needs {n} minutes
            run a timer for {n} minutes
            ring in {n} minutes
            set the timer to {n} minutes"""),
        lines("""make it {n} minutes
            no, {n} minutes
            change it to {n} minutes
            make that {n} minutes instead
            =actually {n} minutes
            ~please make it {n} minutes
            another one for {n} minutes
            and one for {n} minutes
            better {n} minutes"""),
        "The timer is set for {n} minutes.",
        lambda draw: {"n": number(draw, 1, 120, "timer")},
    ),
    "alarm": Action(
        names("""set_alarm, create_alarm, alarm, alarm_set, wake_up, add_alarm, setAlarm, new_alarm"""),
        sentences("Set an alarm.\nSet an alarm clock.\nWake the user at a time.\nCreate an alarm for a time of day."),
        {"time": Slot(("time", "time", "at", "alarm_time", "when")), "day": Slot(("day", "weekday"), optional=True)},
        lines("""set an alarm for {time}
            wake me at {time}
            wake me up at {time}
            alarm at {time}
            I have to get up at {time}
            =set the alarm to {time}
        ~please wake me up at {time}
            please set an alarm for {time}
            I need an alarm at {time}
            can you wake me at {time}?
            =put an alarm on {time}
            ~can you set an alarm for {time}?
            ~alarm for {time}
            make an alarm for {time}
            ring the alarm at {time}
            I must be awake at {time}
            alarm for {time} please
            set my alarm clock to {time}
            let the alarm ring at {time}"""),
        lines("""make it {time}
            no, {time}
            change it to {time}
            actually at {time}
            =and another one at {time}
            ~please make it {time}
            make that {time} instead"""),
        "The alarm is set for {time}.",
        lambda draw: {"time": draw.open(pools.clock)},
    ),
    "light": Action(
        names("""switch_light, set_light, light_switch, control_lights, toggle_light, lights, setLight,
light_control"""),
        sentences(
            """Switch a light on or off.
            Control the lights in a room.
            Turn lights on and off.
            Switch the lamp of a room."""
        ),
        {
            "room": Slot(("room", "room", "location", "area")),
            "state": Slot(("state", "state", "power"), enum=("on", "off")),
        },
        lines("""turn {state} the light in the {room}
            turn {state} the {room} light
            =switch {state} the light in the {room}
        ~could you turn {state} the {room} light?
            switch the {room} light {state}
            turn the {room} lights {state}
            =turn the lights {state} in the {room}
            {room} light {state}
            {room} lights {state} please
            =lights {state} in the {room}
            ~please turn {state} the light in the {room}
            ~can you switch {state} the {room} light?
            please switch {state} the {room} lamp
            put the light {state} in the {room}
            can you turn {state} the light in the {room}?
            could you switch the lights in the {room} {state}?
            I want the {room} light {state}
            the light in the {room} should be {state}
            make sure the {room} light is {state}
            in the {room}, turn the light {state}
            please have the lights {state} in the {room}
            switch {state} all lights in the {room}"""),
        lines("""and in the {room}
            =and the {room} too
            ~and also in the {room}
            ~and also the {room}
            also in the {room}
            the same in the {room}
            and the {room}?
            do the same in the {room}
            now the {room}"""),
        "The light in the {room} is {state}.",
        lambda draw: {"room": room(draw), "state": draw.any(("on", "off"))},
    ),
    "dim": Action(
        names("""set_brightness, dim_light, brightness, light_level, dim, setBrightness, adjust_brightness"""),
        sentences("Set the brightness of a room.\nDim the light.\nSet the light level in per cent."),
        {"room": Slot(("room", "location", "area")), "n": Slot(("level", "brightness", "percent"), "integer")},
        lines("""dim the {room} light to {n} percent
            set the {room} light to {n} percent
            =dim the light in the {room} to {n} percent
            ~can you dim the {room} light to {n} percent?
            ~please set the {room} light to {n} percent
            brightness {n} percent in the {room}
            make the {room} light {n} percent bright
            =set the brightness in the {room} to {n} percent
            {room} light at {n} percent please
            I want {n} percent light in the {room}
            put the {room} lamp at {n} percent
            please dim the {room} to {n} percent
            bring the {room} light to {n} percent"""),
        lines("""=make it {n} percent
            ~please make it {n} percent
            a bit different, {n} percent
            now {n} percent
            better {n} percent
            change it to {n} percent"""),
        "The light in the {room} is at {n} percent.",
        lambda draw: {"room": room(draw), "n": number(draw, 1, 100, "dim")},
    ),
    "colour": Action(
        names("""set_color, light_color, set_light_colour, change_color, colour, setColor, lamp_color"""),
        sentences("Set the colour of a light.\nChange the light colour.\nGive the lamp of a room a colour."),
        {"room": Slot(("room", "location", "area")), "colour": Slot(("color", "colour"))},
        lines("""make the {room} light {colour}
            set the {room} light to {colour}
            change the {room} light to {colour}
            turn the {room} light {colour}
            I want {colour} light in the {room}
            {colour} light in the {room} please
            let the {room} glow {colour}
            please make the light in the {room} {colour}
            set the colour in the {room} to {colour}
            =the {room} lamp should be {colour}
            ~can you make the {room} light {colour}?
            ~please set the {room} light to {colour}
            colour the {room} {colour}"""),
        lines("""make it {colour}
            no, {colour}
            now {colour}
            =change it to {colour}
            ~please change it to {colour}
            better {colour}"""),
        "The light in the {room} is {colour}.",
        lambda draw: {
            "room": room(draw),
            "colour": draw.pick(pools.COLOURS) if draw.chance(0.75) else draw.open(pools.pseudo_word),
        },
    ),
    "heating": Action(
        names("""set_temperature, set_heating, heating, thermostat, set_thermostat, heat_room, setTemperature,
room_heating"""),
        sentences("Set the temperature of a room.\nControl the heating.\nSet the thermostat in degrees.\nHeat a room."),
        {
            "room": Slot(("room", "room", "location", "zone")),
            "n": Slot(("degrees", "temperature", "target", "celsius"), "integer"),
        },
        lines("""set the {room} to {n} degrees
            heat the {room} to {n} degrees
            set the heating in the {room} to {n} degrees
            =set the temperature in the {room} to {n}
        ~please set the {room} to {n} degrees
            make it {n} degrees in the {room}
            I want {n} degrees in the {room}
            {n} degrees in the {room} please
            turn the {room} heating to {n}
            warm the {room} to {n} degrees
            put the thermostat in the {room} at {n}
            ={room} heating to {n} degrees
            ~can you set the {room} to {n} degrees?
            ~set the {room} heating to {n} degrees
            please heat the {room} up to {n} degrees
            the {room} should have {n} degrees
            can you bring the {room} to {n} degrees?
            keep the {room} at {n} degrees"""),
        lines("""make it {n} degrees
            better {n} degrees
            no, {n}
            =change it to {n} degrees
            ~please make it {n} degrees
            a little different, {n} degrees"""),
        "The {room} is set to {n} degrees.",
        lambda draw: {"room": room(draw), "n": number(draw, 5, 35, "heat")},
    ),
    "music": Action(
        names("""play_music, music, play, start_music, play_song, music_player, playMusic, play_audio"""),
        sentences("Play music.\nPlay a song, an artist or a genre.\nStart music in the house."),
        {"what": Slot(("query", "query", "artist", "song", "title"))},
        lines("""play {what}
            =play some {what}
        ~please put on some {what}
            please play {what}
            put on {what}
            I want to hear {what}
            can you play {what}?
            start {what}
            =play something by {what}
            ~can you put on {what}?
            ~play some music by {what}
            let me hear {what}
            play me {what}
            I would like to listen to {what}
            music by {what} please
            let's hear {what}
            turn on some {what}
            could you put on {what}?
            I feel like hearing {what}"""),
        lines("""now play {what}
            no, {what}
            change to {what}
            and now {what}
            =better {what}
            ~please play {what} instead
            play {what} instead"""),
        "Playing {what}.",
        lambda draw: {
            "what": draw.pick(pools.ARTISTS) if draw.chance(0.6) else draw.open(pools.pseudo_word).capitalize()
        },
    ),
    "volume": Action(
        names("""set_volume, volume, change_volume, sound_level, setVolume, volume_set"""),
        sentences("Set the volume.\nChange how loud the music is.\nSet the sound level."),
        {"n": Slot(("level", "volume", "percent"), "integer")},
        lines("""=set the volume to {n}
        ~please set the volume to {n}
            volume {n}
            turn the volume to {n}
            make the volume {n}
            =put the sound at {n}
            ~please turn the volume to {n}
            ~can you set the volume to {n}?
            volume to {n} please
            I want the volume at {n}
            change the volume to {n}
            can you set the sound level to {n}?
            please turn it to volume {n}"""),
        lines("make it {n}\nno, {n}\n=better {n}\n~please make it {n}\nchange it to {n}\nnow {n}"),
        "The volume is at {n}.",
        lambda draw: {"n": number(draw, 0, 100, "volume")},
    ),
    "pause": Action(
        names("""stop_music, pause_music, music_stop, stop_playback, pause, stopMusic"""),
        sentences("Stop the music.\nPause playback.\nStop what is playing."),
        {},
        lines("""=stop the music
        ~please pause the music
            pause the music
            music off
            stop playing
            please stop the song
            be quiet, stop the music
            turn off the music
            =pause
            no more music please
            can you stop the music?
            make the music stop"""),
        None,
        "The music is off.",
        lambda _: {},
    ),
    "list": Action(
        names("""add_to_list, add_item, shopping_list_add, add_shopping_item, list_add, addItem, put_on_list,
remember_item"""),
        sentences("Add an item to the shopping list.\nPut something on the list.\nAdd to the shopping list."),
        {"item": Slot(("item", "item", "product", "entry"))},
        lines("""add {item} to the shopping list
            add {item} to my list
            =put {item} on the shopping list
        ~please put {item} on my list
            put {item} on the list
            =we need {item}
        ~we have run out of {item}
            we are out of {item}
            =I need to buy {item}
            ~can you put {item} on the list?
            ~please add {item} to the shopping list
            buy {item}
            please add {item}
            {item} on the list please
            can you add {item} to the list?
            we have no {item} left
            don't let me forget to buy {item}
            write {item} on the shopping list
            get {item} on the list
            note {item} for shopping
            could you put {item} on my shopping list?
            shopping list: {item}"""),
        lines("""and {item}
            also {item}
            and {item} too
            add {item} as well
            =and some {item}
            ~and also {item}
            plus {item}"""),
        "I added {item} to the list.",
        lambda draw: {"item": item(draw)},
    ),
    "remind": Action(
        names("""add_reminder, remind, set_reminder, create_reminder, reminder, remindMe, reminder_add"""),
        sentences("Set a reminder.\nRemind the user of something.\nCreate a reminder at a time."),
        {"text": Slot(("text", "task", "message", "what")), "time": Slot(("time", "time", "at", "when"))},
        lines("""remind me to {text} at {time}
            =at {time} remind me to {text}
        ~please remind me at {time} to {text}
            please remind me to {text} at {time}
            set a reminder to {text} at {time}
            reminder at {time}: {text}
            I need to {text} at {time}, remind me
            can you remind me to {text} at {time}?
            don't let me forget to {text} at {time}
            =tell me to {text} at {time}
            ~can you set a reminder to {text} at {time}?
            make a reminder for {time} to {text}"""),
        lines("make it {time}\nno, at {time}\nchange it to {time}\nactually at {time}"),
        "I will remind you to {text} at {time}.",
        lambda draw: {"text": chore(draw), "time": draw.open(pools.clock)},
    ),
    "weather": Action(
        names("""get_weather, weather, weather_report, current_weather, check_weather, getWeather, forecast,
weather_now"""),
        sentences("Get the weather of a city.\nTell the current weather.\nWeather for a place."),
        {"city": Slot(("city", "city", "location", "place", "town"))},
        lines("""what is the weather in {city}?
            =what's the weather like in {city}?
        ~how will the weather be in {city}?
            how is the weather in {city}?
            weather in {city}
            weather for {city} please
            will it rain in {city}?
            is it raining in {city}?
            is it cold in {city}?
            how warm is it in {city}?
            tell me the weather in {city}
            do I need an umbrella in {city}?
            is the sun shining in {city}?
            =give me the forecast for {city}
            ~what is the weather now in {city}?
            ~please tell me the weather in {city}
            how cold is it in {city} today?
            what will the weather be in {city}?
            is it warm in {city} now?"""),
        lines("""and in {city}?
            what about {city}?
            =and {city}?
        ~ok, and in {city}?
            how about {city}?
            and for {city}?
            now for {city}"""),
        "",
        lambda draw: {"city": pools.city(draw)},
    ),
    "blinds": Action(
        names("""set_blinds, blinds, move_blinds, shutters, control_blinds, setShutter, window_blinds"""),
        sentences("Open or close the blinds.\nMove the shutters of a room.\nControl the blinds."),
        {
            "room": Slot(("room", "location", "area")),
            "state": Slot(("action", "command", "position"), enum=("open", "close")),
        },
        lines("""{state} the blinds in the {room}
            {state} the {room} blinds
            please {state} the shutters in the {room}
            can you {state} the blinds in the {room}?
            {state} the curtains in the {room}
            =I want you to {state} the {room} blinds
            ~could you {state} the blinds in the {room}?
            ~please {state} the {room} blinds
            in the {room}, {state} the blinds
            {state} all blinds in the {room}
            {room} blinds, {state} please"""),
        lines(
            "and in the {room}\n=and the {room} too\n~and also in the {room}\n"
            "also in the {room}\nthe same in the {room}\nnow the {room}"
        ),
        "The blinds in the {room}: {state}.",
        lambda draw: {"room": room(draw), "state": draw.any(("open", "close"))},
    ),
    "call": Action(
        names("""call_contact, call, phone_call, make_call, dial, callPerson, start_call"""),
        sentences("Call a person.\nStart a phone call.\nDial a contact."),
        {"name": Slot(("name", "contact", "person", "who"))},
        lines("""call {name}
            please call {name}
            phone {name}
            ring {name}
            I want to talk to {name}
            =can you call {name}?
            start a call with {name}
            =dial {name}
            ~can you phone {name}?
            ~please ring {name}
            make a call to {name}
            get {name} on the phone
            give {name} a call"""),
        lines("no, {name}\n=and now {name}\n~and then {name}\ncall {name} instead\nthen {name}\nand {name}"),
        "Calling {name}.",
        lambda draw: {"name": pools.name(draw)},
    ),
    "clock": Action(
        names("""get_time, current_time, time_now, clock, what_time, getTime"""),
        sentences("Get the current time.\nTell the time.\nRead the clock."),
        {},
        lines("""what time is it?
            what's the time?
            =tell me the time
        ~what is the time now?
            do you know the time?
            how late is it?
            =the time please
            ~please tell me the time
            ~can you tell me the time?
            can you tell me what time it is?
            what time do we have?
            what does the clock say?
            current time please"""),
        None,
        "",
        lambda _: {},
    ),
}
