"""The sealed wordings of the final test: for each pool of wordings, how somebody else would say it.

They were written in one go by an author who knew the pools but had seen no reply of the model, and are not edited
after that: a wording that is changed, or read while training text is written, judges nothing any more.
"""

from __future__ import annotations

_BLOCKS: dict[str, str] = {
    "actions.frames": """
        would you please {req}
        could you please {req}?
        please {req} for me
        can you {req} for me?
        I want you to {req}
        I have to {req}
        go ahead and {req}
    """,
    "timer.asks": """
        could you set a timer for {n} minutes?
        hey, set a {n} minute timer
        I'd like a {n} minute timer
        set me a timer for {n} minutes
        start the timer for {n} minutes please
        can you set a {n} minute timer for me?
        create a timer for {n} minutes
        count {n} minutes for me
        new timer, {n} minutes
    """,
    "timer.amends": """
        sorry, I meant {n} minutes
        can you change that to {n} minutes?
        set it to {n} minutes instead
        no, make it {n} minutes
        and another timer for {n} minutes
    """,
    "alarm.asks": """
        could you set an alarm for {time}?
        I need to wake up at {time}
        set my alarm for {time}
        can you wake me up at {time}?
        get me up at {time}
        I want to be woken at {time}
        create an alarm for {time}
        please set the alarm for {time}
        new alarm at {time}
    """,
    "alarm.amends": """
        sorry, I meant {time}
        can you change it to {time}?
        no, make it {time}
        set it to {time} instead
        move it to {time}
    """,
    "light.asks": """
        could you switch {state} the light in the {room}?
        please turn the {room} light {state}
        turn {state} the lights in the {room} please
        can you turn the {room} lights {state} for me?
        I'd like the lights in the {room} {state}
        switch the lamp in the {room} {state}
        hey, lights {state} in the {room} please
        would you turn the lights {state} in the {room}?
        turn {state} all the lights in the {room}
    """,
    "light.amends": """
        can you do the {room} as well?
        the {room} as well please
        also the {room} please
        and the one in the {room}
        the same for the {room}
        and now the {room} too
    """,
    "dim.asks": """
        could you dim the lights in the {room} to {n} percent?
        set the lights in the {room} to {n} percent
        please set the brightness of the {room} light to {n} percent
        turn the {room} light to {n} percent
        I'd like the {room} light at {n} percent
        change the {room} brightness to {n} percent
        dim the lights in the {room} down to {n} percent
        can you set the {room} brightness to {n} percent?
    """,
    "dim.amends": """
        sorry, I meant {n} percent
        no, make it {n} percent
        set it to {n} percent instead
        can you make that {n} percent?
        let's try {n} percent
    """,
    "colour.asks": """
        could you turn the {room} light {colour}?
        please change the {room} light to {colour}
        switch the light in the {room} to {colour}
        set the lamp in the {room} to {colour}
        I'd like the {room} light in {colour}
        can you change the light in the {room} to {colour}?
        make the lights in the {room} {colour} please
        turn the lights in the {room} {colour}
    """,
    "colour.amends": """
        no, make it {colour}
        sorry, I meant {colour}
        try {colour} instead
        can you make it {colour}?
        I'd prefer {colour}
    """,
    "heating.asks": """
        could you heat the {room} to {n} degrees?
        please set the temperature in the {room} to {n} degrees
        turn the heating in the {room} to {n} degrees
        I'd like it to be {n} degrees in the {room}
        set the thermostat in the {room} to {n} degrees
        can you warm the {room} up to {n} degrees?
        change the {room} temperature to {n} degrees
        make the {room} {n} degrees
        please put the heating in the {room} on {n} degrees
    """,
    "heating.amends": """
        sorry, I meant {n} degrees
        no, make it {n} degrees
        set it to {n} degrees instead
        can you make that {n} degrees?
        {n} degrees would be better
    """,
    "music.asks": """
        could you play some {what}?
        I'd like to hear some {what}
        please play some {what} for me
        can you play something by {what}?
        put some {what} on
        play {what} for me
        start playing {what}
        I'm in the mood for {what}
        hey, play {what} please
    """,
    "music.amends": """
        actually, play {what}
        no, put on {what}
        can you play {what} instead?
        switch to {what}
        I'd rather hear {what}
        let's try {what}
    """,
    "volume.asks": """
        could you set the volume to {n}?
        set the volume at {n} please
        please change the volume to {n}
        can you turn the volume to {n}?
        turn the sound to {n}
        I'd like the volume at {n}
        put the volume on {n}
        adjust the volume to {n}
        set the sound to {n}
    """,
    "volume.amends": """
        sorry, I meant {n}
        no, make it {n}
        can you make that {n}?
        set it to {n} instead
        let's try {n}
    """,
    "pause.asks": """
        could you stop the music?
        please stop the music
        turn the music off
        stop the song please
        stop the music now
        can you pause the music?
        please pause the song
        switch the music off
        pause the music for a moment
        stop playing music
    """,
    "list.asks": """
        could you add {item} to the shopping list?
        please put {item} on the shopping list
        can you add {item} to my shopping list?
        add {item} to the list please
        I want {item} on the shopping list
        we should buy {item}
        put {item} on our shopping list
        we're out of {item}
        we need more {item}
        please add {item} to my list
    """,
    "list.amends": """
        oh, and {item}
        and {item} please
        can you add {item} too?
        we need {item} as well
        and add {item}
        {item} too please
    """,
    "remind.asks": """
        could you remind me to {text} at {time}?
        remind me at {time} to {text}
        please remind me at {time} that I have to {text}
        I have to {text} at {time}, please remind me
        set a reminder for {time} to {text}
        create a reminder to {text} at {time}
        at {time}, please remind me to {text}
        I want to be reminded to {text} at {time}
    """,
    "remind.amends": """
        sorry, I meant {time}
        can you move that to {time}?
        no, make it {time}
        set it for {time} instead
        let's say {time}
    """,
    "weather.asks": """
        could you tell me the weather in {city}?
        what's the weather in {city}?
        how's the weather in {city}?
        what's the forecast for {city}?
        what is the weather like in {city} today?
        can you check the weather in {city}?
        what's the temperature in {city}?
        is it sunny in {city}?
        do I need a jacket in {city}?
        show me the weather for {city}
    """,
    "weather.amends": """
        what about in {city}?
        and how is it in {city}?
        and the weather in {city}?
        can you check {city} too?
        and how about {city}?
        now check {city} please
    """,
    "blinds.asks": """
        could you {state} the {room} blinds?
        please {state} the blinds in the {room}
        can you {state} the shutters in the {room}?
        {state} the {room} shutters
        {state} the {room} curtains please
        I'd like you to {state} the blinds in the {room}
        would you {state} the blinds in the {room}?
        hey, {state} the blinds in the {room}
    """,
    "blinds.amends": """
        can you do the {room} as well?
        the {room} as well please
        also the {room} please
        and the ones in the {room}
        the same for the {room}
    """,
    "call.asks": """
        could you call {name}?
        can you call {name} for me?
        please phone {name}
        I'd like to call {name}
        I need to speak to {name}
        make a phone call to {name}
        call {name} please
        give {name} a ring
        I want to call {name}
        please dial {name}
    """,
    "call.amends": """
        sorry, I meant {name}
        no, call {name}
        can you try {name} instead?
        actually, call {name}
        now call {name}
    """,
    "clock.asks": """
        could you tell me the time?
        what is the time?
        what time is it now?
        please tell me what time it is
        do you have the time?
        what's the current time?
        hey, what time is it?
        can you check the time?
        what is the current time?
        I need to know the time
    """,
    "talk.personas": """
        You are {name}, the helpful assistant of {place}.
        Your name is {name} and you assist the visitors of {place}.
        You are {name}, the reception assistant at {place}. Be friendly.
        You are a home assistant called {name}.
        You are {name}. You answer the questions of guests at {place}.
    """,
    "talk.plain_systems": """
        You are a home assistant.
        You are a polite assistant. Keep your answers short.
        You are a smart home assistant that helps the family.
        Answer briefly and kindly.
        You are a kiosk assistant.
    """,
    "talk.who": """
        what's your name again?
        who am I talking with?
        hello, who are you?
        could you tell me your name?
        what are you called?
        can I ask your name?
        and what is your name?
        please tell me about yourself
        who are you exactly?
    """,
    "talk.greet": """
        hi, good morning
        hello, good evening
        hey, hello there
        good morning assistant
        hi, hello there
        good evening to you
        hello, good to see you
        hello to you
        good afternoon to you
    """,
    "talk.wellbeing": """
        how are you feeling?
        are you having a good day?
        how are you doing today?
        hey, how are you?
        hi, how are you today?
        how have you been lately?
        and how are you?
        is everything okay with you?
        how's life?
        so how are you?
    """,
    "talk.abilities": """
        what are you capable of?
        what can I use you for?
        what can you help me do?
        how can you help?
        what things can you do?
        can you tell me what you can do?
        what services do you offer?
        what are some things you can do?
        what kind of help can you give me?
    """,
    "talk.thanks": """
        thank you for your help
        thanks very much
        thanks a lot for your help
        great, thank you
        ok, thank you
        thank you, that's all I needed
        thanks, that was helpful
        thanks a million
        perfect, thanks
    """,
    "talk.bye": """
        goodbye for now
        bye, see you later
        okay, bye
        see you next time
        have a nice day, bye
        good night, see you tomorrow
        I'm leaving now, goodbye
        bye, take care
        I have to leave now, bye
    """,
    "talk.human": """
        am I talking to a real person?
        are you a real human?
        is this a human?
        am I talking to a machine?
        are you an actual person?
        am I chatting with a bot?
        are you a robot or a human?
        are you just a computer?
        am I talking to an AI?
        are you a chatbot?
    """,
    "talk.private": """
        can you work without internet?
        do you need an internet connection?
        do you run in the cloud?
        are you running in the cloud?
        is this conversation private?
        is my data sent to the cloud?
        do you send my data anywhere?
        do you need wifi to work?
        are my conversations private?
    """,
    "talk.maker": """
        who were you made by?
        who is the company behind you?
        who are your makers?
        which company built you?
        who is behind you?
        who were you developed by?
        can you tell me who made you?
        who are your creators?
        do you know who made you?
    """,
    "talk.praise": """
        you're great
        good work
        you're doing a great job
        you are really helpful
        you are so smart
        you're the best
        I really like you
        you are wonderful
        impressive, well done
    """,
    "talk.blame": """
        that's wrong
        your answer is wrong
        that was wrong
        you got that wrong
        that's not what I meant
        you didn't understand me
        that didn't help
        you are not very helpful
        that's not what I asked for
        you're wrong
    """,
    "talk.joke": """
        could you tell me a joke?
        tell me another joke
        tell me something that makes me laugh
        do you know any jokes?
        can you make me laugh?
        I'd like to hear a joke
        tell me a funny joke
        do you have any good jokes?
        make a joke
    """,
    "talk.fine": """
        okay, that's fine
        alright
        ok, good
        that's good
        no, I'm fine
        that's all for now
        no, nothing else
        ok, got it
        sounds great
        I don't need anything else
        okay, never mind
    """,
    "talk.alien_frames": """
        can you tell me something about {x}?
        what is so special about {x}?
        give me a short explanation of {x}
        I'd like to understand {x}, can you explain it?
        what are the most important facts about {x}?
        write a short essay about {x}
        tell me the history of {x}
        why does {x} matter?
        what should I know about {x}?
        can you give me some information about {x}?
        how would you explain {x} to a child?
        who came up with {x}?
        who was the first person on the moon?
        what is the capital of Canada?
        what is the largest country in the world?
        why is the sea salty?
        when was the Eiffel Tower built?
        who invented the light bulb?
        what is the boiling point of water?
        how many continents are there?
        what causes thunder and lightning?
        how do birds know where to fly in winter?
        who is the king of England?
        what currency do they use in Switzerland?
        how does a microwave oven work?
        how does the internet work?
        how long do elephants live?
        how do bees make honey?
        when did the Titanic sink?
        what's in the news today?
        who won the last Olympic games?
        what is the best film of all time?
        write a birthday poem for my mother
        write a thank you note to my teacher
        write an apology email to a customer
        write a short story about a lost dog
        help me write my CV
        write a product description for a coffee mug
        give me a title for my novel
        summarise this article for me
        check my spelling in this letter
        how do you say thank you in Japanese?
        translate I am hungry into Spanish
        can you speak German?
        write a python program that prints the first ten primes
        what is the difference between a list and a tuple in Python?
        explain how a hash table works
        how do I install Linux on my laptop?
        my computer is slow, what can I do?
        what is the derivative of x cubed?
        what are the first twenty digits of pi?
        explain Pythagoras' theorem
        I have a sore throat, what can I do?
        how much water should I drink every day?
        what are the symptoms of flu?
        how many calories does a banana have?
        how can I sleep better?
        how can I save money?
        how do I file my tax return?
        what is a mortgage?
        how do I make pancakes?
        give me a recipe for tomato soup
        how long do I boil an egg?
        how do I remove a wine stain from a shirt?
        how do I change a flat tyre?
        what should I see in Barcelona?
        which book should I read next?
        recommend a good series to watch
        what is a good present for a ten year old?
        what is the best time to visit Japan?
        I feel lonely, what should I do?
        how do I make new friends?
        are there aliens in space?
        who should I vote for?
        ask me a riddle
        tell me an interesting fact
        tell me a story about a dragon
        draw me a picture of a house
        help me with my chemistry homework
        how do I prepare for a job interview?
        explain the rules of chess
        how do I learn to play the guitar?
        how do I tie a tie?
    """,
    "talk.alien_whole": """
        how far away is the sun?
        how many planets are there in the solar system?
        who wrote Romeo and Juliet?
        why do we dream?
        what is the fastest car in the world?
        which is the biggest ocean?
        how many people live in China?
        what is the difference between a virus and a bacterium?
        what is a black hole?
        what do pandas eat?
        who won the football match last night?
        what language is spoken in Argentina?
        when is the next solar eclipse?
        write a wedding toast for my brother
        write an essay on the causes of the first world war
        write a limerick
        suggest a name for my new puppy
        make this text shorter
        rewrite this sentence in a formal way
        what does bonjour mean in English?
        teach me some Italian words
        how do I centre a div in CSS?
        write a regular expression that matches an email address
        how do I undo my last git commit?
        prove that there are infinitely many primes
        what is the probability of rolling two sixes?
        is coffee bad for you?
        can I take ibuprofen with alcohol?
        my back hurts, what exercises help?
        which stocks will go up this year?
        is it legal to record a phone call?
        should I buy or rent a house?
        what can I cook with rice and beans?
        how do I get rid of ants?
        how often should I water a cactus?
        do you believe in God?
        what is love?
        will it be possible to travel through time?
        what do you think about politics?
        let's play a guessing game
        tell me a scary story
        what can you see in this photo?
        how can I get a job at a bank?
        how do I train for a marathon?
        why is my dog barking at night?
        how do I teach my cat to use the litter box?
    """,
    "facts.value_asks": """
        do you have the {key}?
        could you give me the {key}?
        please give me the {key}
        can you look up the {key}?
        I'd like to have the {key}
        hello, I need the {key} please
        what's the {key} again?
        can you remind me of the {key}?
        do you happen to know the {key}?
        can I get the {key}?
        may I know the {key}?
    """,
    "facts.place_asks": """
        how do I get to the {key} from here?
        could you tell me where to find the {key}?
        can you show me the way to the {key}?
        which way do I go to the {key}?
        can you direct me to the {key}?
        I'm trying to find the {key}
        please tell me where I can find the {key}
        where do I go for the {key}?
        how can I find the {key}?
        I need to find the {key}
    """,
    "facts.price_asks": """
        how much would a {key} be?
        what does one {key} cost?
        could you tell me the price of a {key}?
        what's the cost of a {key}?
        how much do I pay for a {key}?
        what is the price of the {key}?
        how much is one {key}?
        I'd like a {key}, what does it cost?
        how much would a {key} cost me?
    """,
    "facts.hours_asks": """
        what are your opening hours on {key}?
        what time are you open on {key}?
        when are you open {key}?
        what time do you open and close on {key}?
        are you open {key}?
        could you tell me the opening hours on {key}?
        what are the hours for {key}?
        when can I come on {key}?
        how late are you open on {key}?
        I'd like to visit on {key}, when are you open?
    """,
    "facts.next_asks": """
        and how about {key}?
        thank you, and {key}?
        great, and {key}?
        what about {key} then?
        okay, how about {key}?
        thanks. what about {key}?
        now what about {key}?
        alright, and {key}?
    """,
    "facts.leads": """
        These are the facts:
        Please use these facts:
        Facts that you may use:
        This is what you know:
        Information for guests:
        Use only what is written here:
    """,
    "memory.my_name": """
        hi, I'm {x}
        hi, my name is {x}
        my name's {x}
        hey, my name is {x}
        good evening, my name is {x}
        I go by {x}
        hello there, I'm {x}
        you may call me {x}
        hi, this is {x}
        nice to meet you, I'm {x}
    """,
    "memory.who_am_i": """
        can you remember what my name is?
        what did I tell you my name was?
        do you know who I am?
        could you tell me my name?
        tell me what my name is
        do you still know my name?
        have you remembered my name?
        what is my name again?
        please say my name
    """,
    "memory.remember": """
        can you note that {fact}?
        please keep in mind that {fact}
        I want you to remember that {fact}
        could you remember that {fact}?
        please don't forget that {fact}
        remember this: {fact}
        make a note: {fact}
        please make a note that {fact}
    """,
    "memory.recall": """
        do you know {key}?
        can you remember {key}?
        could you tell me what {key} is?
        what is {key} again?
        please remind me what {key} was
        could you tell me {key}?
        what did I say {key} was?
        do you remember what {key} is?
        I can't remember {key}, what is it?
    """,
    "memory.say": """
        could you say {x}?
        please repeat this: {x}
        repeat the following: {x}
        please say the following: {x}
        can you say this for me: {x}
        say this after me: {x}
        please repeat after me: {x}
        I'd like you to repeat {x}
    """,
    "sums.ask": """
        can you tell me how much {sum} is?
        how much does {sum} make?
        what do you get for {sum}?
        could you calculate {sum}?
        please calculate {sum}
        what is the result of {sum}?
        I need the result of {sum}
        could you tell me what {sum} is?
        work out {sum}
        what would {sum} be?
    """,
    "sums.convert": """
        how many {to} do I get from {n} {of}?
        what's {n} {of} in {to}?
        could you convert {n} {of} to {to}?
        please convert {n} {of} into {to}
        how many {to} make {n} {of}?
        can you tell me how many {to} are in {n} {of}?
        change {n} {of} to {to}
        please tell me {n} {of} in {to}
        how much are {n} {of} in {to}?
        I want to convert {n} {of} to {to}
    """,
    "sums.double": """
        can you double it?
        and what is double that?
        what's twice that?
        double that please
        now multiply that by two
        and times two?
    """,
    "sums.halve": """
        can you halve that?
        what's half of that?
        please cut that in half
        and half of that?
        divide it by two
        now divide that by two
    """,
    "sums.add": """
        can you add {n} to that?
        plus {n} more
        and what if I add {n}?
        please add {n} to that
        add another {n}
        what is that plus {n}?
        now plus {n}
    """,
    "sums.take": """
        can you subtract {n} from that?
        what is that minus {n}?
        now subtract {n}
        take {n} off that
        please take away {n}
        take {n} away from that
        and what if I take away {n}?
    """,
    "tools.what_added": """
        what did I ask you to put on the list?
        what did I just put on the list?
        can you tell me what I added?
        what was the last thing I added?
        which item did I just add?
        what item did I ask you to add?
        sorry, what did I add?
        what was added to the list?
    """,
    "tools.what_done": """
        did that work?
        is that done?
        has that been done?
        did you do it?
        what did you do just now?
        so, did it work?
        was that successful?
        what have you just done?
    """,
    "tools.errors": """
        not connected
        device not found
        no signal
        permission denied
        unknown device
        try again later
        out of range
        server error
    """,
    "tools.result_keys": """
        code
        amount
        room
        city
        table
        temperature
        duration
        name
        position
    """,
    "tools.states": """
        scheduled
        accepted
        rejected
        expired
        blocked
        online
        offline
        running
        reserved
    """,
}

HELD_OUT: dict[str, tuple[str, ...]] = {
    name: tuple(line.strip() for line in block.strip().splitlines()) for name, block in _BLOCKS.items()
}
