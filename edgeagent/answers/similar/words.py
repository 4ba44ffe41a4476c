"""The words that the guards know, in English, German, French, Spanish and Italian. All are in lower case.

NEGATIONS, CONTEXT and the patterns are looked for in texts of any language.

A language has only what its own texts need: German `es` points to a context, and Spanish `es` is a verb.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Language:
    """What the guards know of one language.

    fillers: words without a content of their own; a text's language is recognized by them too. negations: words that
    reverse a sentence. context: words whose meaning depends on other text or on the time. opposites: the opposites of
    each word. numbers: the number that a word stands for. units, dates: the amount or time that a word stands for.
    """

    fillers: frozenset[str]
    negations: frozenset[str]
    context: frozenset[str]
    opposites: dict[str, frozenset[str]]
    numbers: dict[str, str]
    units: dict[str, str]
    dates: dict[str, str]


def _numbers(low: str, tens: str, others: str) -> dict[str, str]:
    """Return what the words are: `low` from two on, `tens` from thirty on, and `others` as word=number."""
    found = {word: str(number) for number, word in enumerate(low.split(), 2)}
    found |= {word: str(10 * number) for number, word in enumerate(tens.split(), 3)}
    return found | dict(pair.split("=") for pair in others.split())


def _opposites(lines: str) -> dict[str, frozenset[str]]:
    """Return each word's opposites. In a line, `/` stands between words that are opposed."""
    found: dict[str, frozenset[str]] = {}
    for line in lines.strip().splitlines():
        sides = [frozenset(side.split()) for side in line.split("/")]
        for side in sides:
            others = frozenset[str]().union(*(other for other in sides if other is not side))
            for word in side:
                found[word] = found.get(word, frozenset()) | others
    return found


def _meanings(lines: str) -> dict[str, str]:
    """Return each word's meaning. A line holds words of one meaning, and the first of them is its name."""
    rows = [line.split() for line in lines.strip().splitlines()]
    return {word: row[0] for row in rows for word in row}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SYMBOLS = """
    m meter meters metre metres metro metros metri mètre mètres
    km kilometer kilometers kilometre kilometres kilómetro kilómetros chilometri kilomètres
    cm centimeter centimeters centimetre centimetres zentimeter
    mile miles meile meilen milla millas miglia
    foot feet ft fuß pieds pies piedi
    inch inches zoll pouce pouces pulgada pulgadas pollici
    kg kilo kilos kilogram kilograms kilogramm
    g gram grams gramm gramme grammes gramos grammi
    pound pounds lb lbs pfund livre livres libra libras sterline
    ounce ounces oz unze unzen
    l liter liters litre litres litro litros litri
    gallon gallons
    celsius centigrade
    fahrenheit
    euro euros eur
    dollar dollars usd dólar dólares dollari
    franc francs franken chf
    percent prozent percento
    second seconds sekunde sekunden seconde secondes segundo segundos secondi
    minute minutes minuten minuto minutos minuti
    hour hours hourly stunde stunden stündlich heure heures hora horas
    week weeks woche wochen semaine semaines semana semanas settimana settimane weekly wöchentlich semanal settimanale
    month months monthly monat monate monaten monatlich mois mensuel mensuelle mes meses mensual mese mesi mensile
    year years jahr jahre jahren an ans année années año años anno anni yearly annual annually jährlich annuel anual
    kb kilobyte kilobytes
    mb megabyte megabytes
    gb gigabyte gigabytes
"""
_UNITS = _meanings(_SYMBOLS)

# Names that are often written in small letters, so that no rule sees names. They are the same in most languages.
_BRANDS = """
        visa / mastercard / maestro / amex / paypal / klarna / bitcoin / girocard
        aspirin aspirine aspirina / ibuprofen ibuprofeno ibuprofene / paracetamol paracetamolo acetaminophen / insulin
        android / iphone / windows / mac / linux
"""

ENGLISH = Language(
    fillers=_words(
        "a an the i i'm i'd i've i'll me my mine we we're us our you you're your do does did is are was were be been "
        "am have has had having can could may might must shall should will would what what's which who who's whom "
        "whose when where where's why how at in on of to for by with from about as and or but if so there please "
        "hello hi hey excuse sorry thanks thank tell know like want need question one bother anyone anything get "
        "much many any some kindly let wanted just ask u"
    ),
    # With the contractions as they are often typed, without an apostrophe.
    negations=_words(
        "not no never none neither nor without cannot hardly except unless dont doesnt didnt isnt arent "
        "wasnt werent cant couldnt wont wouldnt shouldnt mustnt hasnt havent hadnt non minus forbidden prohibited "
        "banned barred disallowed illegal unlawful only"
    )
    | {f"no{what}" for what in ("body", "thing", "where")},
    context=_words(
        "it its it's itself this that that's these those he she him her his hers they them their theirs now today "
        "tonight tomorrow yesterday here again then still anymore currently recently ago earlier later previous "
        "previously above below former latter same instead else another more continue repeat latest"
    ),
    opposites=_opposites(
        """
        open opens opened opening / close closes closed closing shut shuts
        mr / mrs ms
        on / off
        in inside into indoors / out outside outdoors
        up upstairs / down downstairs
        to / from
        from since after / until till before
        above over / below under beneath
        left / right
        north / south
        east / west
        front / back rear
        with / without
        buy buys buying purchase / sell sells selling
        arrive arrives arriving arrival arrivals / depart departs departing departure departures leave leaves leaving
        enter enters entering entrance entry / exit exits leave leaves leaving
        start starts starting begin begins starting on / stop stops stopping end ends ending finish finishes off
        increase increases raise raises higher up more grow / decrease decreases lower lowers reduce reduces less down
        turn / unturned
        enable enabled activate activated allow allowed / disable disabled deactivate forbid forbidden block blocked
        allow allowed permit permitted approve grant / deny denied forbid forbidden refuse reject prohibit ban banned
        approve approved / deny denied reject rejected decline declined cancel cancelled
        accept accepted / reject rejected decline declined refuse refused
        include includes included including / exclude excludes excluded excluding extra additional added
        add adds adding insert / remove removes removing delete subtract
        install / uninstall remove
        create / delete destroy
        save / delete discard spend
        connect join / disconnect
        send sends sending give pay pays paying / receive receives receiving get take
        deposit / withdraw withdrawal
        borrow / lend
        upload / download
        import / export
        first / last second third
        next / previous last
        oldest old older / newest new newer youngest young younger
        largest biggest large big tallest / medium / smallest small little tiny
        longest long longer tall / shortest short shorter
        highest high / lowest low
        best good better / worst bad worse
        most / least fewest
        more / less fewer
        maximum max / minimum min
        cheap cheapest / expensive dearest
        fast fastest quick quickest / slow slowest
        early earliest / late latest
        hot hottest warm warmest heat / cold coldest cool coolest
        easy easiest / hard hardest difficult
        full / empty
        wet / dry / oily greasy
        heavy / light
        dark / light bright
        loud louder / quiet quieter
        safe / dangerous unsafe
        true correct right / false wrong incorrect
        same equal / different other
        always / never
        all every each / none some
        born birth / died die dies death dead
        men man male boy boys gentlemen / women woman female girl girls ladies
        employer employers / employee employees staff
        buyer buyers customer customers guest guests / seller sellers vendor vendors host hosts
        tenant tenants lodger / landlord landlords owner owners
        sender senders / recipient recipients receiver receivers addressee
        borrower borrowers debtor / lender lenders creditor
        teacher teachers trainer trainers / pupil pupils student students trainee trainees
        doctor doctors dentist dentists physician / nurse nurses / patient patients / visitor visitors
        driver drivers / passenger passengers
        father dad / mother mum mom / son sons / daughter daughters / brother / sister / husband / wife / friend friends
        adult adults / child children kids / student students / senior seniors pensioner pensioners
        baby babies infant infants toddler toddlers / teenager teenagers teen teens / adult adults
        breakfast / lunch / dinner supper
        car cars / bus buses coach coaches / bicycle bicycles bike bikes / truck trucks lorry lorries / van vans
        motorcycle motorcycles motorbike motorbikes / car cars / bus buses / bicycle bicycles bike bikes
        train trains / tram trams / bus buses / plane planes flight flights / taxi taxis / ferry ferries boat boats
        mute muted muting / unmute unmuted unmuting
        credit / debit
        cash coins / card cards / cheque cheques / voucher vouchers
        refund refunded / exchange exchanged
        pick picking collect get / drop dropping submit hand return
        extend extended prolong / shorten shortened
        diesel / petrol gasoline / electric / hybrid
        automatic / manual
        dog dogs / cat cats / bird birds / horse horses / rabbit rabbits
        red / blue / green / yellow / white / black / grey gray / brown / pink / orange
        gold / silver / bronze / copper
        coffee / tea / beer / wine / water / milk / juice
        chicken / beef / pork / lamb / fish
        vegetarian / vegan / halal / kosher
        headache head / toothache tooth teeth / stomachache stomach / backache back / earache ear ears / throat / knee
        pregnant pregnancy / breastfeeding nursing
        fridge refrigerator / freezer
        wheelchair wheelchairs / pram prams stroller strollers pushchair pushchairs
        ground / basement cellar
        english / german / french / spanish / italian / chinese / japanese / russian / arabic / portuguese / dutch
        profit gain / loss
        win won / lose lost
        pass passed success / fail failed failure
        import imports / export exports
        public / private
        day / night
        morning am / evening afternoon night pm
        summer / winter / spring / autumn fall
        weekday weekdays / weekend weekends
        push / pull
        lock locked / unlock unlocked
        hire / fire dismiss
        marry wedding / divorce
        attack / defend
        advantage advantages pros benefits / disadvantage disadvantages cons drawbacks risks
        """
        + _BRANDS
    ),
    numbers=_numbers(
        "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen twenty",
        "thirty forty fifty sixty seventy eighty ninety hundred",
        "zero=0 thousand=1000 million=1000000 billion=1000000000 half=1/2 quarter=1/4 dozen=12 once=1x twice=2x "
        "double=2x triple=3x first=1. second=2. third=3. fourth=4. fifth=5.",
    ),
    units=_UNITS | _meanings("day days daily\npenny pence\npint pints\nacre acres"),
    dates=_meanings(
        """
        monday mondays
        tuesday tuesdays tue tues
        wednesday wednesdays wed
        thursday thursdays thu thur thurs
        friday fridays fri
        saturday saturdays
        sunday sundays
        january jan
        february feb
        march
        april apr
        june jun
        july jul
        august aug
        september sep sept
        october oct
        november nov
        december dec
        weekend weekends
        weekday weekdays
        morning mornings
        noon midday
        afternoon afternoons
        evening evenings
        night nights midnight
        spring
        summer
        autumn
        winter
        christmas
        easter
        holiday holidays
        """
    ),
)

GERMAN = Language(
    fillers=_words(
        "der die das den dem des ein eine einen einem einer ich mich mir mein meine meinen wir uns unser sie ihr ihre "
        "ihnen man ist sind war waren sein bin hat habe haben kann können darf dürfen muss müssen soll sollte will "
        "wollen möchte würde wird werden was welche welcher welches wer wen wem wann wo wie wieso warum woher wohin um "
        "am im in an auf von zu zum zur für mit bei aus über und oder aber wenn ob bitte hallo danke guten tag gibt "
        "viel gern mal denn"
    ),
    negations=_words(
        "nicht kein keine keinen keinem keiner keines nie niemals niemand nichts nirgends ohne weder außer minus "
        "verboten untersagt unzulässig nur lediglich ausschließlich"
    ),
    context=_words(
        "es dies diese dieser dieses diesen diesem jene jener jenes er ihn ihm jetzt heute morgen gestern hier dort da "
        "dann nochmal nochmals wieder weiter noch gerade eben damals vorhin vorher nachher später früher dasselbe "
        "derselbe dieselbe stattdessen sonst davon damit dazu darüber daran derzeit aktuell neueste"
    ),
    opposites=_opposites(
        """
        öffnen öffnet geöffnet offen auf / schließen schließt geschlossen zu
        herr herrn / frau
        von ab seit / bis
        an ein einschalten anschalten / aus ausschalten abschalten
        hinein rein drinnen / hinaus raus draußen
        hoch oben hinauf / runter unten hinunter
        vor / nach
        über / unter
        links linke / rechts rechte
        nord norden / süd süden
        ost osten / west westen
        mit / ohne
        kaufen / verkaufen
        ankunft ankommen / abfahrt abfahren abflug
        eingang / ausgang
        anfang beginn beginnt beginnen anfangen starten / ende endet enden aufhören stoppen beenden
        erhöhen mehr / senken verringern weniger
        erlaubt erlauben / verboten verbieten
        genehmigen annehmen zusagen / ablehnen absagen verweigern
        sperren / entsperren
        aktivieren / deaktivieren
        hinzufügen / entfernen löschen
        senden schicken / empfangen erhalten
        einzahlen / abheben auszahlen
        leihen / verleihen
        erste ersten erster / letzte letzten letzter
        älteste ältesten alt alte / neueste neuesten neu neue jüngste
        größte größten groß / kleinste kleinsten klein
        längste lang / kürzeste kurz
        höchste hoch / niedrigste niedrig
        beste besten gut / schlechteste schlechtesten schlecht
        teuer teuerste / billig billigste günstig günstigste
        schnell / langsam
        früh / spät
        heiß warm / kalt kühl
        immer / nie
        alle / keine
        richtig wahr / falsch
        geboren geburt / gestorben tod starb
        männer mann herren / frauen frau damen
        erwachsene erwachsenen / kinder kindern kind / studenten studierende schüler / senioren rentner
        frühstück / mittagessen / abendessen
        auto autos pkw / bus busse / fahrrad fahrräder / lkw / motorrad motorräder
        gewinnen gewinn / verlieren verlust
        tag / nacht
        vorteile / nachteile
        vater / mutter / sohn / tochter / bruder / schwester / ehemann / ehefrau / freund freundin
        hund hunde hunden / katze katzen / vogel vögel / pferd pferde
        rot rote roten / blau blaue blauen / grün grüne / gelb gelbe / weiß weiße weißen / schwarz schwarze
        bar bargeld / karte karten / scheck / gutschein
        benzin benziner / diesel / elektro / hybrid
        zug züge / straßenbahn / flugzeug flug / taxi / fähre schiff
        verlängern / verkürzen
        umtauschen umtausch / erstatten erstattung
        kaffee / tee / bier / wein / wasser / milch
        """
        + _BRANDS
    ),
    numbers=_numbers(
        "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
        "achtzehn neunzehn zwanzig",
        "dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert",
        "null=0 tausend=1000 halb=1/2 halbe=1/2 viertel=1/4 dutzend=12 einmal=1x zweimal=2x doppelt=2x dreimal=3x "
        "erste=1. ersten=1. zweite=2. zweiten=2. dritte=3. dritten=3. vierte=4. fünfte=5.",
    ),
    units=_UNITS | _meanings("tag tage tagen"),
    dates=_meanings(
        """
        montag montags
        dienstag dienstags
        mittwoch mittwochs
        donnerstag donnerstags
        freitag freitags
        samstag samstags sonnabend
        sonntag sonntags
        januar
        februar
        märz
        april
        mai
        juni
        juli
        august
        september
        oktober
        november
        dezember
        wochenende wochenenden
        vormittag vormittags
        mittag mittags
        nachmittag nachmittags
        abend abends
        nacht nachts mitternacht
        frühling
        sommer
        herbst
        winter
        weihnachten
        ostern
        feiertag feiertags feiertagen
        """
    ),
)

FRENCH = Language(
    fillers=_words(
        "le la les un une des du de d l je j me mon ma mes nous notre vous votre vos il y a est sont était être suis "
        "ai avez peut peux puis pouvez doit dois voudrais que qu quel quelle quels quelles qui quand où comment "
        "pourquoi combien à au aux en dans sur pour par avec et ou mais si bonjour merci s'il plaît se on c'est "
        "c s t m qu"
    ),
    negations=_words(
        "ne n pas non jamais aucun aucune rien personne sans ni sauf interdit interdite interdits interdites "
        "seulement uniquement"
    ),
    context=_words(
        "ça cela ceci ce cette cet ces celui celle ceux elle elles lui leur ils maintenant aujourd'hui hier demain ici "
        "là encore alors toujours actuellement avant après déjà dernier dernière même"
    ),
    opposites=_opposites(
        """
        ouvre ouvrez ouvrir ouvert ouverture / ferme fermez fermer fermé fermeture
        monsieur / madame mademoiselle mme mlle
        allumer activer / éteindre désactiver
        entrée entrer / sortie sortir
        arrivée arriver / départ partir
        début commencer commence / fin finir finit terminer
        acheter / vendre
        avec / sans
        monter augmenter haut plus / descendre baisser bas moins réduire
        gauche / droite
        nord / sud
        est / ouest
        autorisé permis / interdit
        accepter approuver / refuser rejeter
        ajouter / supprimer enlever
        envoyer / recevoir
        déposer / retirer
        premier première / dernier dernière
        ancien ancienne vieux vieille / nouveau nouvelle récent récente
        grand grande / petit petite
        meilleur meilleure bon / pire mauvais
        cher chère / bon
        rapide / lent
        tôt / tard
        chaud / froid
        toujours / jamais
        vrai / faux
        né née naissance / mort morte décès
        hommes homme / femmes femme
        adulte adultes / enfant enfants / étudiant étudiants / retraité retraités
        voiture voitures / bus car / vélo vélos / camion camions / moto motos
        jour / nuit
        avantages / inconvénients
        père / mère / fils / fille / frère / sœur / mari / femme
        chien chiens / chat chats / oiseau oiseaux / cheval chevaux
        rouge rouges / bleu bleue / vert verte / jaune jaunes / blanc blanche / noir noire
        espèces liquide / carte cartes / chèque chèques
        essence / diesel / électrique / hybride
        train trains / tram / avion vol / taxi / bateau ferry
        prolonger / raccourcir
        échanger échange / rembourser remboursement
        café / thé / bière / vin / eau / lait
        """
        + _BRANDS
    ),
    numbers=_numbers(
        "deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit "
        "dix-neuf vingt",
        "trente quarante cinquante soixante",
        "zéro=0 cent=100 cents=100 mille=1000 demi=1/2 quart=1/4 douzaine=12 deuxième=2. troisième=3. premier=1. "
        "première=1. double=2x",
    ),
    units=_UNITS | _meanings("day jour jours"),
    dates=_meanings(
        "lundi\nmardi\nmercredi\njeudi\nvendredi\nsamedi\ndimanche\njanvier\nfévrier\nmars\navril\nmai\njuin\njuillet\n"
        "août\nseptembre\noctobre\nnovembre\ndécembre\nmatin\nmidi\naprès-midi\nsoir\nnuit minuit\nprintemps\nété\n"
        "automne\nhiver\nnoël\npâques"
    ),
)

SPANISH = Language(
    fillers=_words(
        "el la los las un una unos unas de del al a yo me mi mis nos nuestro usted ustedes su sus se es son era está "
        "están estoy hay ha he tiene tienen tengo puede puedo pueden debo debe quiero quisiera qué que cuál cuáles "
        "quién cuándo cuando dónde donde cómo como cuánto cuánta cuántos por para con en y e o u pero si hola "
        "gracias favor "
        "quería saber"
    ),
    negations=_words(
        "no nunca jamás nadie nada ningún ninguna ninguno sin tampoco ni excepto salvo prohibido prohibida "
        "solo sólo solamente únicamente"
    ),
    context=_words(
        "esto esta este estos estas eso esa ese esos esas aquello ello él ella ellos ellas lo ahora hoy ayer "
        "mañana aquí "
        "ahí allí otra otro vez entonces todavía aún ya actualmente antes después mismo misma"
    ),
    opposites=_opposites(
        """
        abre abren abrir abierto abierta apertura / cierra cierran cerrar cerrado cerrada cierre
        señor sr / señora señorita sra srta
        encender activar / apagar desactivar
        entrada entrar / salida salir
        llegada llegar llega / salida salir sale
        empieza empezar comenzar inicio / termina terminar acabar fin
        comprar / vender
        con / sin
        subir aumentar más arriba / bajar reducir menos abajo
        izquierda / derecha
        norte / sur
        este / oeste
        permitido permitir / prohibido prohibir
        aceptar aprobar / rechazar denegar
        añadir / quitar eliminar borrar
        enviar / recibir
        ingresar / retirar
        primero primera primer / último última
        viejo vieja antiguo antigua / nuevo nueva reciente
        grande / pequeño pequeña
        mejor bueno / peor malo
        caro cara / barato barata
        rápido / lento
        temprano / tarde
        caliente calor / frío
        siempre / nunca
        verdadero / falso
        nació nacimiento / murió muerte
        hombres hombre / mujeres mujer
        adulto adultos / niño niños / estudiante estudiantes / jubilado jubilados
        desayuno / almuerzo / cena
        coche coches / autobús autobuses / bicicleta bicicletas / camión camiones / moto motos
        día / noche
        ventajas / desventajas
        padre / madre / hijo / hija / hermano / hermana / marido / esposa
        perro perros / gato gatos / pájaro pájaros / caballo caballos
        rojo roja / azul azules / verde verdes / amarillo amarilla / blanco blanca / negro negra
        efectivo / tarjeta tarjetas / cheque cheques
        gasolina / diésel / eléctrico / híbrido
        tren trenes / tranvía / avión vuelo / taxi / barco ferry
        prolongar ampliar / acortar
        cambiar cambio / reembolso
        café / té / cerveza / vino / agua / leche
        """
        + _BRANDS
    ),
    numbers=_numbers(
        "dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis "
        "diecisiete dieciocho "
        "diecinueve veinte",
        "treinta cuarenta cincuenta sesenta setenta ochenta noventa cien",
        "cero=0 mil=1000 medio=1/2 media=1/2 docena=12 primero=1. primera=1. segundo=2. segunda=2. tercero=3. "
        "tercera=3. doble=2x",
    ),
    units=_UNITS | _meanings("day día días"),
    dates=_meanings(
        "lunes\nmartes\nmiércoles\njueves\nviernes\nsábado sábados\ndomingo "
        "domingos\nenero\nfebrero\nmarzo\nabril\nmayo\n"
        "junio\njulio\nagosto\nseptiembre\noctubre\nnoviembre\ndiciembre\nmadrugada\nmediodía\ntarde\nnoche "
        "medianoche\n"
        "primavera\nverano\notoño\ninvierno\nnavidad"
    ),
)

ITALIAN = Language(
    fillers=_words(
        "il lo la i gli le l un uno una di del della dei delle al alla a da dal dalla in nel nella su sul per con e o "
        "ma se io mi mio mia ci noi nostro voi vostro lei suo sua è sono era essere ho ha hanno avete c'è posso può "
        "possono devo deve vorrei che cosa quale quali chi quando dove come perché quanto quanta quanti quante a ora "
        "ciao buongiorno grazie favore si dell all nell sull dall dov c"
    ),
    negations=_words(
        "non no mai nessuno nessuna niente nulla senza né neanche tranne vietato vietata proibito proibita "
        "solo soltanto solamente"
    ),
    context=_words(
        "questo questa questi queste quello quella quelli quelle ciò esso essa lui loro adesso oggi ieri "
        "domani qui qua "
        "lì là ancora poi allora attualmente prima dopo stesso stessa già"
    ),
    opposites=_opposites(
        """
        apre aprite aprire aperto aperta apertura / chiude chiudete chiudere chiuso chiusa chiusura
        signor signore / signora signorina
        accendere attivare / spegnere disattivare
        entrata ingresso entrare / uscita uscire
        arrivo arrivare arriva / partenza partire parte
        inizio inizia iniziare comincia / fine finisce finire termina
        comprare / vendere
        con / senza
        aumentare alzare più su / diminuire abbassare ridurre meno giù
        sinistra / destra
        nord / sud
        est / ovest
        permesso consentito / vietato proibito
        accettare approvare / rifiutare respingere
        aggiungere / togliere eliminare cancellare
        inviare mandare / ricevere
        versare depositare / prelevare ritirare
        primo prima / ultimo ultima
        vecchio vecchia antico antica / nuovo nuova recente
        grande / piccolo piccola
        migliore buono / peggiore cattivo
        caro cara / economico economica
        veloce / lento
        presto / tardi
        caldo / freddo
        sempre / mai
        vero / falso
        nato nata nascita / morto morta morte
        uomini uomo / donne donna
        adulto adulti / bambino bambini / studente studenti / pensionato pensionati
        colazione / pranzo / cena
        auto macchina / autobus / bicicletta biciclette / camion / moto
        giorno / notte
        vantaggi / svantaggi
        padre / madre / figlio / figlia / fratello / sorella / marito / moglie
        cane cani / gatto gatti / uccello uccelli / cavallo cavalli
        rosso rossa / blu / verde verdi / giallo gialla / bianco bianca / nero nera
        contanti / carta carte / assegno assegni
        benzina / diesel / elettrica / ibrida
        treno treni / tram / aereo volo / taxi / traghetto nave
        prolungare / accorciare
        cambiare cambio / rimborso
        caffè / tè / birra / vino / acqua / latte
        """
        + _BRANDS
    ),
    numbers=_numbers(
        "due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
        "diciassette "
        "diciotto diciannove venti",
        "trenta quaranta cinquanta sessanta settanta ottanta novanta cento",
        "zero=0 mille=1000 mila=1000 mezzo=1/2 mezza=1/2 dozzina=12 primo=1. secondo=2. seconda=2. terzo=3. terza=3. "
        "doppio=2x",
    ),
    units=_UNITS | _meanings("day giorno giorni"),
    dates=_meanings(
        "lunedì\nmartedì\nmercoledì\ngiovedì\nvenerdì\nsabato\ndomenica\ngennaio\nfebbraio\nmarzo\naprile\nmaggio\n"
        "giugno\nluglio\nagosto\nsettembre\nottobre\nnovembre\ndicembre\nmattina "
        "mattino\nmezzogiorno\npomeriggio\nsera\n"
        "notte mezzanotte\nprimavera\nestate\nautunno\ninverno\nnatale\npasqua"
    ),
)

LANGUAGES: dict[str, Language] = {
    "english": ENGLISH,
    "german": GERMAN,
    "french": FRENCH,
    "spanish": SPANISH,
    "italian": ITALIAN,
}

COURTESIES = _words(
    "hello hi hey please thanks thank you excuse me sorry hallo guten tag bitte danke bonjour merci hola gracias ciao "
    "buongiorno grazie"
)
"""Words that are said before and after a question, and change nothing."""

# Portuguese, Dutch, Czech, Russian and Arabic. Chinese and Japanese negations are among the compared characters.
NEGATIONS = _words(
    "não nem nunca ninguém nenhum nenhuma sem proibido proibida só apenas somente "
    "niet geen nooit niemand niets zonder verboden alleen "
    "nelze není nejsou nikdy nikdo nic žádný žádná žádné bez zakázáno jen pouze "
    "не нет нельзя никогда никто ничего без запрещено только "
    "لا ليس ليست لن لم بدون غير ممنوع"
)
CONTEXT = _words(
    "hoje agora amanhã ontem aqui lá novamente repita este esta essa ele ela eles elas isso isto "
    "vandaag nu morgen gisteren vanavond straks hier daar opnieuw nogmaals weer hij zij dit deze "
    "dnes teď nyní zítra včera tady zde tam znovu opět ona oni tento tato toto "
    "сегодня сейчас теперь завтра вчера здесь тут там снова опять повторите он она они оно это этот эта эти "
    "اليوم الآن غدا أمس الليلة هنا هناك مجددا هو هي هم هذا هذه"
)
KOREAN_NEGATION = re.compile(r"없|않|못|불가|금지|(?<!\w)안(?!\w)")
POINTING = re.compile(
    # Each alternative begins with a character, or all of them behind one word's beginning: so most are passed quickly.
    r"[今昨]|明[天日]|现在|現在|目前|오늘|지금|내일|어제|현재"
    # Here, there, this, he, she, again.
    r"|[这這那她它彼]|再(?!见)|他(?<!其他)|[こそ](?<![どき][こそ])(?:こ|れ|の)|あ(?:そこ|れ|の)|もう一度|もう一回"
    r"|여기|거기|저기(?!요)|[이그저][것거]|다시|مرة أخرى"
    # The present time or day, at the beginning or behind a comma.
    r"|何(?<![^。、！?？!, ]何)(?:[時日]|曜日)(?:です|だ|$)|なんじ(?<![^。、！?？!, ]なんじ)(?:です|だ|$)"
    r"|几点钟?了|几号了|星期几(?<![^，。！？]星期几)(?=\W*$)|كم الساعة"
    r"|몇 시(?:(?<![^,.!?]몇 시)|(?<=[,.!?] 몇 시))(?:예요|입니까|인가요|야)"
    r"|\b(?:de novo\b|outra vez\b|ještě jednou\b|ещ[её] раз\b|at (?:present|the moment)\b"
    # "How long before you close", but not "how long before the show do the doors open".
    r"|how (?:long|many (?:minutes|hours|days)) "
    r"(?:until|till|before(?! .{0,60}\b(?:do|does|can|may|must) (?:i|we|you|the)\b))\b"
    # The time itself, but not a time limit.
    r"|(?:what(?:'s| is)|tell me) the (?:time|date)(?: and (?:time|date))?"
    r"(?: (?:now|please|there|in [\w ]+))?\s*(?:[?.!,;]|$)"
    # Not the shop next door, nor the button "Next".
    r"|when(?:'s)? .{0,60}(?<!press )(?<!click )(?<!tap )\bnext\b(?! (?:to|door|button)\b)"
    r"|next (?:train|bus|tram|ferry|flight|tour|show|event|departure)\b(?! stops?\b)"
    r"|nächste[nrs]? (?:zug|bus|bahn|führung|vorstellung)\b|wie spät ist\b"
    r"|quelle heure est\b(?<![àa] quelle heure est)|qué hora es\b(?<!a qué hora es)"
    r"|che or[ae](?<!a che or[ae]) (?:è|sono)\b"
    # The same. At the end of a text: "que dia é a festa" asks for another one. Some only at its beginning or behind a
    # comma, since "la festa che giorno è" does too.
    r"|(?:wie viel uhr ist es|welche[rs]? (?:tag|datum) (?:ist|haben wir)|quel jour (?:sommes-nous|est-on|on est)"
    r"|que horas são|qual é a (?:data|hora)|hoe laat is het|wat is de (?:datum|tijd)|kolik je hodin|который час"
    r"|сколько времени|какое число|(?:(?<![^¿¡.,;:!?])|(?<=[¿¡.,;:!?] ))"
    r"(?:qué día es|che giorno è|que (?:dia|hora) é|welke dag is het|какой день))"
    r"(?:,? (?:bitte|please|s'il vous plaît|por favor|per favore|alsjeblieft|alstublieft|prosím|пожалуйста))?(?=\W*$)"
    r"|prochaine?s?\b|prossim[oaie]\b"
    # "El próximo a Madrid", but not "un hotel próximo al museo", one that is near.
    r"|próxim[oa]s?\b(?! (?:a|al|ao|à|aos|às|de|da|do)\b)|(?:el|la|los|las|o|a|os|as) próxim[oa]s?\b)"
)
"""What means something only at a time or a place, in lower case: now, the next train, the present time, here, again."""

ASKED = {
    phrase: frozenset(kinds.split())
    for kinds, phrases in {
        "place": "where/woher/d'où",
        # "How do I get to the station" asks for a place too.
        "way place": "how do/how does/how can/how could/how may/how should/how to/wo/wohin/où/dónde/donde/adónde/dove"
        "/dov'è",
        "way place amount": "what do i/what do we/what can i/what must i/what should i/what may i/what shall i",
        "way": "wie kann/wie können/wie komme/wie kommt/wie muss/wie soll/wie geht/comment/cómo",
        "time": "when/what time/which time/what day/which day/what date/which date/how early/how late/wann/wie spät"
        "/wie viel uhr/wieviel uhr/quand/quelle heure/quel jour/quels jours/cuándo/cuando/qué hora/qué día/qué días"
        "/quando/che ora/che giorno/che giorni",
        "person": "who/who's/whom/whose/wer/wen/wem/wessen/qui/quién/quiénes/chi",
        "reason": "why/how come/warum/wieso/weshalb/pourquoi/por qué/perché",
        "amount": "how much/how many/wie viel/wie viele/wieviel/wieviele/combien/cuánto/cuánta/cuántos/cuántas/cuanto"
        "/cuanta/cuantos/cuantas/quanto/quanta/quanti/quante",
        "duration": "how long/how much time/how many minutes/how many hours/how many days/how many weeks"
        "/how many months/how many years/how fast/how quickly/wie lange/wie schnell/bis wann/combien de temps"
        "/cuánto tiempo/quanto tempo",
        "time duration": "until when/till when",
        "frequency": "how often/how many times/wie oft/combien de fois/cuántas veces/quante volte",
        "distance": "how far/wie weit",
        "age": "how old/wie alt/quel âge",
    }.items()
    for phrase in phrases.split("/")
}
"""What is asked for, by phrases of up to three words. Of phrases that begin at one word, the longest counts."""

OBLIGED = re.compile(
    r"\b(?:(?:do|does|did|will|would) (?:\w+ ){1,3}(?:need|have to)"
    r"|(?:must|should|shall) (?:i|we|one|you|they|the|my|a)|(?:(?<=[.,;:?!] )|^)(?:must|should)"
    r"|required|necessary|mandatory|obligatory|compulsory|obliged"
    r"|(?:muss|müssen|soll|sollen|sollte|sollten|brauche|brauchen) (?:ich|wir|man|sie|mein|meine|die|der|das)"
    r"|nötig|notwendig|erforderlich|pflicht|verpflichtet"
    r"|dois-je|doit-on|devons-nous|je dois|on doit|il faut|faut-il|nécessaire|obligatoire"
    r"|tengo que|tenemos que|hay que|debo|debemos|necesito|necesitamos|necesari[oa]|obligatori[oa]"
    r"|devo|dobbiamo|bisogna|necessari[oa])\b"
)
"""Where it is asked whether something must be done, in lower case."""
OPEN = re.compile(
    r"\b(?:what|which|how|when|where|who|wie|was|welche[nrs]?|wann|wo|wer|wen|quoi|quels?|quelles?|comment|quand|où|qui"
    r"|qué|cuál|cuáles|cómo|cuándo|dónde|quién|che|cosa|quale|quali|come|quando|dove|chi)\b|^que\b"
)
"""Where it is asked what must be done, how or when: "What do I have to do?" and "What can I do?" want one answer."""

POLITELY_ONLY = re.compile(
    r"\b(?:only (?:like|want|wanted) to (?:know|ask)|only a (?:quick |short )?question"
    r"|nur (?:mal )?(?:kurz )?(?:wissen|fragen)|nur eine (?:kurze )?frage"
    r"|seulement (?:savoir|demander)|seulement une (?:petite )?question"
    r"|s[oó]lo (?:quería|quisiera|una pregunta|una domanda|sapere|chiedere))\b"
)
"""Where "only" begins a question politely, in lower case, and excludes nothing."""

TO_US = re.compile(
    r"\b(?:you (?!tell\b|show\b)(?:\w+ )?(?:me|us)|sie (?!sagen\b)(?:mir|mich|uns)|vous (?:m'|me |nous ))(?:\b|(?<=\W))"
)
TO_YOU = re.compile(r"\b(?:(?:i|we) (?!ask\b)(?:\w+ )?you|(?:ich|wir) (?:ihnen|sie)|(?:je|nous) vous)\b")
"""Who does something for whom: "Do you send me the form?" and "Do I send you the form?" want two answers."""

TITLES = _words("dr med mr mrs ms mme mlle prof herr frau señor señora sr sra srta dott dra signora signor")
"""Words before a name."""

PARTICLES = frozenset("的了吗嗎呢吧啊呀请請问問您你我们們是在有就都也么麼什")
"""Chinese characters that change nothing about what is asked. Japanese has such words in hiragana."""

PREFIXES = ("un", "in", "im", "ir", "il", "dis", "de", "non", "mis", "ent", "dés", "des", "ne", "не")
"""Prefixes that reverse a word. The other languages' are tried in each, since a language is only guessed."""


@cache
def joined(names: frozenset[str]) -> Language:
    """Return what is known of any of these languages; of two meanings of a word, the first language's in order."""
    chosen = [LANGUAGES[name] for name in sorted(names, reverse=True)]
    opposites: dict[str, frozenset[str]] = {}
    for known in chosen:
        for word, others in known.opposites.items():
            opposites[word] = opposites.get(word, frozenset()) | others
    return Language(
        fillers=frozenset[str]().union(*(known.fillers for known in chosen)),
        negations=frozenset[str]().union(*(known.negations for known in chosen)),
        context=frozenset[str]().union(*(known.context for known in chosen)),
        opposites=opposites,
        numbers=_merged(known.numbers for known in chosen),
        units=_merged(known.units for known in chosen),
        dates=_merged(known.dates for known in chosen),
    )


def _merged(tables: Iterable[dict[str, str]]) -> dict[str, str]:
    return {word: meaning for table in tables for word, meaning in table.items()}
